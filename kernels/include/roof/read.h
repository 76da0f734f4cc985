// SPDX-License-Identifier: Apache-2.0
// roof.read: reads a buffer `passes` times and writes what it read as a sum per block. A probe: its time over the
// buffer's bytes is the roof of streaming reads, or of the L2 where the buffer fits there.
//
// sums[b] = sum modulo 2^32 of the words that block b read; the sum of all blocks is `passes` times that of the source.
#pragma once

#include "toolkit/shape_rules.h"

namespace roof::read {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"source", Role::input, dtypes(TK_U32), "W", "contiguous words, a multiple of 4, 16-byte aligned"},
    {"sums", Role::output, dtypes(TK_U32), "blocks", "sum of a block's words, modulo 2^32"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"blocks", ScalarKind::integer, nullptr, "blocks of the launch, > 0"},
    {"passes", ScalarKind::integer, "1", "how often the source is read, > 0"},
    {"in_flight", ScalarKind::integer, "4", "16-byte loads of a thread in flight, 4 (512 threads a block) or 16 (128)"},
};

inline void check(const Args& a) {
  require_integer(a, "blocks", 1);
  require_integer(a, "passes", 1);
  const int64_t in_flight = a.integer("in_flight");
  require(in_flight == 4 || in_flight == 16, a, "in_flight", "4 or 16", std::to_string(in_flight));
  const TensorView source = a.tensor("source");
  require(source.size(0) % 4 == 0, a, "source", "a multiple of 4 words", got_shape(source));
}
inline std::vector<OutputSpec> outputs(const Args& a) { return {{"sums", TK_U32, {a.integer("blocks")}}}; }

inline constexpr Contract contract{"roof.read", "reads a buffer", kTensors, kScalars, check, outputs};

}  // namespace roof::read
