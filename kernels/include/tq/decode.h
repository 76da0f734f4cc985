// SPDX-License-Identifier: Apache-2.0
// tq.decode: attention of one query row per sequence over a TurboQuant cache, grouped query heads.
//
//   score = norm * (q_rot . c[code]) [/ sqrt(sum c^2 + 1e-16)] * scale      (centroid keys, q_rot = q @ Pi^T)
//         = (q . fp8 key) * scale                                           (fp8 keys, q not rotated)
//   value = code * scale + zero;  output = softmax (base e) over the first seq_lens[b] tokens;  lse in BASE e
// Query head h reads KV head h div (Hq/Hk). seq_len <= 0: output 0, lse -inf. A block id outside [0,blocks) masks its
// tokens; seq_len beyond W*S masks what is beyond and is a finding about the input. NaN or +inf scores: NaN for that
// head. The row stride of block_table may be 0. `scale` is rounded to fp32. num_kv_splits is a hint about the
// original's partition and never changes the result beyond rounding.
#pragma once

#include "tq/slot.h"

namespace tq::decode {

inline constexpr ScalarSpec kScale{"scale", ScalarKind::real, nullptr, "softmax scale, rounded to fp32"};
inline constexpr ScalarSpec kSplits{"num_kv_splits", ScalarKind::integer, "32", "splits of the original's partition, >= 1"};

inline constexpr TensorSpec kTensors[] = {
    {"query", Role::input, kFloat, "B,Hq,D", "queries, not rotated"},
    {"kv_cache", Role::input, dtypes(TK_U8), "blocks,S,Hk,slot", "the cache, any strides"},
    {"block_table", Role::input, kIndex, "B,W", "block id per S tokens; outside [0,blocks): masked"},
    {"seq_lens", Role::input, kIndex, "B", "tokens of each sequence"},
    {"Pi", Role::optional_input, dtypes(TK_F32), "", "[D,D] rotation; not needed for fp8 keys"},
    {"PiT", Role::optional_input, dtypes(TK_F32), "", "[D,D] its transpose"},
    {"centroids", Role::optional_input, dtypes(TK_F32), "", "[2^mse_bits]; not needed for fp8 keys"},
    {"output", Role::output, kFloat, "B,Hq,D", "query's dtype"},
    {"lse", Role::output, dtypes(TK_F32), "B,Hq", "log-sum-exp, base e; -inf where nothing is live"},
};
inline constexpr ScalarSpec kScalars[] = {kScale,     kKeyFp8,         kMseBits,    kKeyPackedSize,
                                          kValueBits, kNormCorrection, kFp8Flavour, kSplits};

inline void check(const Args& a) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  require_positive(a, "query", 1, 2);
  require_positive(a, "kv_cache", 0, 1, 2);
  require_positive(a, "block_table", 1);
  require_countable(a, "block_table", "kv_cache");
  require(q.size(1) % cache.size(2) == 0, a, "query", "Hq a multiple of Hk = " + std::to_string(cache.size(2)),
          got_shape(q));
  require_integer(a, "num_kv_splits", 1);
  check_codebook(a, slot_layout(a, q.size(2)), true);
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const TensorView q = a.tensor("query");
  return {{"output", q.dtype(), q.shape()}, {"lse", TK_F32, {q.size(0), q.size(1)}}};
}

inline constexpr Contract contract{"tq.decode", "attention over a TurboQuant cache", kTensors, kScalars, check, outputs};

}  // namespace tq::decode
