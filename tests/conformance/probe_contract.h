// SPDX-License-Identifier: Apache-2.0
// The contracts of the two ops that run probes: what every GPU has, and what device/nvidia.h adds.
#pragma once

#include "device/op.h"
#include "probes.h"

namespace conformance {

inline constexpr toolkit::TensorSpec kTensors[] = {
    {"in", toolkit::Role::input, toolkit::dtypes(TK_U32), "words", "words of the probe"},
    {"out", toolkit::Role::output, toolkit::dtypes(TK_U32), "words", "what it found"},
};
inline constexpr toolkit::ScalarSpec kScalars[] = {
    {"probe", toolkit::ScalarKind::integer, nullptr, "of enum Probe"}};
inline std::vector<toolkit::OutputSpec> outputs(const toolkit::Args& a) {
  return {{"out", TK_U32, {kSizes[a.integer("probe")].out}}};
}
inline constexpr toolkit::Contract kDialect{
    "dialect.probe", "one probe of the dialect", kTensors, kScalars, nullptr, outputs};
inline constexpr toolkit::Contract kNvidia{
    "dialect.nvidia", "one probe of device/nvidia.h", kTensors, kScalars, nullptr, outputs};

}  // namespace conformance
