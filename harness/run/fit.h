// SPDX-License-Identifier: Apache-2.0
// What a case takes on a device, known before anything is placed there.
#pragma once

#include <cstdint>
#include <string>

#include "harness/ops/card.h"
#include "harness/plugins/device.h"
#include "harness/tensors/case.h"

namespace harness {

// The outputs without memory behind them: nobody looks at the data before a run.
TensorMap unbacked_outputs(const Card& card, const Case& made);

// Inputs and outputs as Placement lays them, guard bands aside. Throws toolkit::Violation.
uint64_t placed_bytes(const Card& card, const Case& made);
// What the implementation's own query asks for; 0 where it has no answer (run_once tells why).
uint64_t workspace_bytes(const Implementation& implementation, const Card& card, const Case& made);

// "needs 12.3 GiB of 8 GiB, ..." where both together are more than `fraction` of
// the device's memory; empty where they fit, or where the device does not say what it has.
std::string why_too_big(const Device& device, const Implementation& implementation,
                        const Card& card, const Case& made, double fraction);

}  // namespace harness
