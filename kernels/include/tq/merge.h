// SPDX-License-Identifier: Apache-2.0
// tq.merge: the partial results of a split decode into one (stage 2). BASE e.
//
// Split s of sequence b covers tokens [s*len, min((s+1)*len, seq)) with len = ceil(seq / splits). Empty splits are
// never read; a used split with lse -inf weighs 0; all such, or seq <= 0: output 0, lse -inf. A NaN or +inf lse of a
// used split gives NaN.
#pragma once

#include "tq/slot.h"

namespace tq::merge {

inline constexpr TensorSpec kTensors[] = {
    {"mid_o", Role::input, dtypes(TK_F32), "B,Hq,splits,?", "[.., D+1]: normalised partial output, lse at index D"},
    {"seq_lens", Role::input, kIndex, "B", "tokens of each sequence"},
    {"output", Role::output, kFloat, "B,Hq,D", "dtype: the scalar output_dtype"},
    {"lse", Role::output, dtypes(TK_F32), "B,Hq", "log-sum-exp, base e"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"num_kv_splits", ScalarKind::integer, "", "splits in use, <= mid_o's; default all"},
    {"output_dtype", ScalarKind::text, "f16", "f16, bf16 or f32"},
};

inline int64_t splits(const Args& a) {
  return a.given("num_kv_splits") ? a.integer("num_kv_splits") : a.tensor("mid_o").size(2);
}

inline void check(const Args& a) {
  const TensorView m = a.tensor("mid_o");
  require(m.size(3) >= 2, a, "mid_o", "a last dimension of D+1 >= 2", got_shape(m));
  require_positive(a, "mid_o", 1, 2);
  require(splits(a) >= 1 && splits(a) <= m.size(2), a, "num_kv_splits", "1 to " + std::to_string(m.size(2)),
          std::to_string(splits(a)));
  const tk_dtype d = dtype_named(a.text("output_dtype"));
  require(d != 0 && (kFloat & set_of(d)), a, "output_dtype", "f16, bf16 or f32", std::string(a.text("output_dtype")));
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const TensorView m = a.tensor("mid_o");
  return {{"output", dtype_named(a.text("output_dtype")), {m.size(0), m.size(1), m.size(3) - 1}},
          {"lse", TK_F32, {m.size(0), m.size(1)}}};
}

inline constexpr Contract contract{"tq.merge", "partial results of a split decode into one (base e)", kTensors,
                                   kScalars, check, outputs};

}  // namespace tq::merge
