// SPDX-License-Identifier: Apache-2.0
// qsa.attend: softmax attention of a row over its listed tokens in a paged K/V cache, grouped query heads.
//
// A listed token t is live iff t >= 0, t div S < W and block_table[r][t div S] is in [0,P). A token listed twice
// counts twice; -1 holes may stand anywhere. Query head h reads KV head h div (Hq/Hkv), scale D^-0.5.
//   output = softmax over the live tokens; no live token (or request outside [0,N)): output 0, lse -inf
//   lse = log2(sum exp(scaled score)), BASE 2, on request
// Non-finite input in a live token gives NaN for that head. K and V are read by their strides (halves of one row,
// head-major, padded pages). D: a multiple of 8.
#pragma once

#include "toolkit/shape_rules.h"

namespace qsa::attend {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"q", Role::input, kHalf, "R,Hq,D", "queries, any strides"},
    {"k_cache", Role::input, kHalf, "P,S,Hkv,D", "keys, any strides"},
    {"v_cache", Role::input, kHalf, "P,S,Hkv,D", "values, any strides"},
    {"logical_indices", Role::input, kIndex, "R,T", "token indices; -1: none"},
    {"block_table", Role::input, kIndex, "N,W", "page id per S tokens; outside [0,P): masked"},
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): output 0"},
    {"output", Role::output, kHalf, "R,Hq,D", "q's dtype"},
    {"lse", Role::optional_output, dtypes(TK_F32), "R,Hq", "log-sum-exp, base 2; -inf where nothing is live"},
};

inline void check(const Args& a) {
  const TensorView q = a.tensor("q"), k = a.tensor("k_cache");
  require_same_dtype(a, "k_cache", "q");
  require_same_dtype(a, "v_cache", "q");
  require_positive(a, "q", 1, 2);
  require_positive(a, "logical_indices", 1);
  require_positive(a, "k_cache", 0, 1, 2);
  require_positive(a, "block_table", 0, 1);
  require(q.size(1) % k.size(2) == 0, a, "q", "Hq a multiple of Hkv = " + std::to_string(k.size(2)), got_shape(q));
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const TensorView q = a.tensor("q");
  return {{"output", q.dtype(), q.shape()}, {"lse", TK_F32, {q.size(0), q.size(1)}}};
}

inline constexpr Contract contract{"qsa.attend", "sparse paged attention over listed tokens", kTensors, {}, check,
                                   outputs};

}  // namespace qsa::attend
