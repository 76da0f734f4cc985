// SPDX-License-Identifier: Apache-2.0
// roof.copy: target = source. A probe: the roof of traffic that is half reads and half writes.
#pragma once

#include "toolkit/shape_rules.h"

namespace roof::copy {

using namespace toolkit;

inline constexpr int kThreads = 256;  // of a block of the kernel

inline constexpr TensorSpec kTensors[] = {
    {"source", Role::input, dtypes(TK_U32), "W", "contiguous words, a multiple of 4, 16-byte aligned"},
    {"target", Role::output, dtypes(TK_U32), "W", "the same words"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"blocks", ScalarKind::integer, "1", "blocks of the launch, > 0; a runtime's own copy has none"},
    {"in_flight", ScalarKind::integer, "4", "16-byte loads of a thread before its stores, 1 or 4"},
};

inline void check(const Args& a) {
  require_integer(a, "blocks", 1);
  const int64_t in_flight = a.integer("in_flight");
  require(in_flight == 1 || in_flight == 4, a, "in_flight", "1 or 4", std::to_string(in_flight));
  const TensorView source = a.tensor("source");
  require(source.size(0) % 4 == 0, a, "source", "a multiple of 4 words", got_shape(source));
}
inline std::vector<OutputSpec> outputs(const Args& a) { return {{"target", TK_U32, a.tensor("source").shape()}}; }

inline constexpr Contract contract{"roof.copy", "copies a buffer", kTensors, kScalars, check, outputs};

}  // namespace roof::copy
