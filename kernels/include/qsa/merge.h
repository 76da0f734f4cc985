// SPDX-License-Identifier: Apache-2.0
// qsa.merge: partial attention results of several splits into one. BASE 2.
//
//   output = sum_s 2^(lse_s - max) o_s / sum_s 2^(lse_s - max); all lse -inf: zeros.
// A split whose lse is -inf is not read (its partial may be garbage). A NaN or +inf lse gives NaN.
#pragma once

#include "toolkit/shape_rules.h"

namespace qsa::merge {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"partial_output", Role::input, dtypes(TK_F32), "splits,R,Hq,D", "normalised partial outputs"},
    {"partial_lse", Role::input, dtypes(TK_F32), "splits,R,Hq", "log-sum-exp of each split, base 2; -inf: empty"},
    {"output", Role::output, kFloat, "R,Hq,D", "dtype: the scalar output_dtype"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"output_dtype", ScalarKind::text, "bf16", "bf16, f16 or f32"},
};

inline void check(const Args& a) {
  const tk_dtype d = dtype_named(a.text("output_dtype"));
  require(d != 0 && (kFloat & set_of(d)), a, "output_dtype", "bf16, f16 or f32", std::string(a.text("output_dtype")));
  require_positive(a, "partial_output", 0, 2, 3);
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const TensorView p = a.tensor("partial_output");
  return {{"output", dtype_named(a.text("output_dtype")), {p.size(1), p.size(2), p.size(3)}}};
}

inline constexpr Contract contract{"qsa.merge", "partial attention results into one (base 2)", kTensors, kScalars,
                                   check, outputs};

}  // namespace qsa::merge
