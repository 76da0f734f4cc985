// SPDX-License-Identifier: Apache-2.0
// tq.rotate: queries into the rotated space of the key codes.
//
//   q_rot = float(query) @ Pi^T, in full fp32 accuracy (no tf32); Pi is any orthogonal matrix, not only a symmetric one.
#pragma once

#include "tq/slot.h"

namespace tq::rotate {

inline constexpr TensorSpec kTensors[] = {
    {"query", Role::input, kFloat, "B,Hq,D", "queries"},
    {"Pi", Role::input, dtypes(TK_F32), "D,D", "the rotation"},
    {"q_rot", Role::output, dtypes(TK_F32), "B,Hq,D", "rotated queries"},
};

inline void check(const Args& a) { require_positive(a, "query", 1, 2); }

inline std::vector<OutputSpec> outputs(const Args& a) { return {{"q_rot", TK_F32, a.tensor("query").shape()}}; }

inline constexpr Contract contract{"tq.rotate", "queries into the rotated space of the key codes", kTensors, {}, check,
                                   outputs};

}  // namespace tq::rotate
