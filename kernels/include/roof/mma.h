// SPDX-License-Identifier: Apache-2.0
// roof.mma: the same matrix product again and again, from registers. A probe: the roof of the matrix instruction that
// device::Mma stands for.
//
// Each wave adds A B (16x16x16) `iterations` times to each of kProducts accumulators; c = iterations * A B of block 0.
// sums[b] = sum over the accumulators' elements of block b's waves.
#pragma once

#include "toolkit/shape_rules.h"

namespace roof::mma {

using namespace toolkit;

inline constexpr int kProducts = 4;   // independent accumulators of a wave
inline constexpr int kThreads = 256;  // of a block

inline constexpr TensorSpec kTensors[] = {
    {"a", Role::input, kHalf, "16,16", "A, contiguous rows"},
    {"b", Role::input, kHalf, "16,16", "B, contiguous rows; dtype as a"},
    {"c", Role::output, dtypes(TK_F32), "16,16", "iterations * A B"},
    {"sums", Role::output, dtypes(TK_F32), "blocks", "sum of all accumulators of a block"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"blocks", ScalarKind::integer, nullptr, "blocks of the launch, > 0"},
    {"iterations", ScalarKind::integer, nullptr, "products per accumulator, > 0"},
};

inline void check(const Args& a) {
  require_integer(a, "blocks", 1);
  require_integer(a, "iterations", 1);
  require_same_dtype(a, "b", "a");
}
inline std::vector<OutputSpec> outputs(const Args& a) {
  return {{"c", TK_F32, {16, 16}}, {"sums", TK_F32, {a.integer("blocks")}}};
}

inline constexpr Contract contract{"roof.mma", "matrix products from registers", kTensors, kScalars, check, outputs};

}  // namespace roof::mma
