// SPDX-License-Identifier: Apache-2.0
// qsa.expand: block indices to token indices, then the tail of the group that is still open.
//
// full = min((pos+1) div C, len div C, K), len = 0 where the request is outside [0,N).
//   column j < full*C:                        block[j div C]*C + j mod C (in 64 bits)
//   the next (pos+1) mod C columns (<= C-1):  tokens from ((pos+1) div C)*C on
//   all others:                               -1
// A token outside [0,len) becomes -1 in place (the tail may be partly -1). The tail follows the blocks directly: with
// fewer than K blocks it moves left. Exact.
#pragma once

#include <limits>

#include "toolkit/shape_rules.h"

namespace qsa::expand {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"block_indices", Role::input, kIndex, "R,K", "chosen blocks; any id, garbage becomes -1"},
    {"query_positions", Role::input, kIndex, "R", "position of a row; < 0: nothing"},
    {"sequence_lengths", Role::input, kIndex, "N", "tokens of a request"},
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): padding"},
    {"indices", Role::output, dtypes(TK_I32), "R,token_topk+C-1", "token indices, -1 for none"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"compress_ratio", ScalarKind::integer, nullptr, "C, tokens per block, > 0"},
    {"token_topk", ScalarKind::integer, nullptr, "K*C, tokens of the selected blocks"},
};

// Rules that select shares: C > 0, token_topk a positive multiple of C.
inline void check_width(const Args& a) {
  const int64_t c = require_integer(a, "compress_ratio", 1), topk = require_integer(a, "token_topk", 1);
  require(topk % c == 0, a, "token_topk", "a multiple of compress_ratio = " + std::to_string(c), std::to_string(topk));
  const int64_t most = std::numeric_limits<int64_t>::max() - c;  // width adds them
  require(topk <= most, a, "token_topk", "at most " + std::to_string(most), std::to_string(topk));
}
inline int64_t width(const Args& a) { return a.integer("token_topk") + a.integer("compress_ratio") - 1; }

inline void check(const Args& a) {
  check_width(a);
  const int64_t k = a.integer("token_topk") / a.integer("compress_ratio");
  const TensorView blocks = a.tensor("block_indices");
  require(blocks.size(1) == k, a, "block_indices", "shape [R," + std::to_string(k) + "] (token_topk / compress_ratio)",
          got_shape(blocks));
  require_positive(a, "sequence_lengths", 0);
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  return {{"indices", TK_I32, {a.tensor("block_indices").size(0), width(a)}}};
}

inline constexpr Contract contract{"qsa.expand", "selected blocks to token indices, with the open group's tail",
                                   kTensors, kScalars, check, outputs};

}  // namespace qsa::expand
