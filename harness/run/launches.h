// SPDX-License-Identifier: Apache-2.0
// What an implementation would launch for a case on a device that need not be here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/ops/card.h"
#include "harness/plugins/registry.h"
#include "harness/tensors/case.h"

namespace harness {

struct PlannedLaunch {
  std::string kernel;
  int64_t grid[3];  // blocks
  int threads;      // of a block
  uint64_t dynamic_shared_bytes;
};

struct PlannedRun {
  std::string refused;  // why the implementation does not serve the case, or cannot tell; or empty
  std::vector<PlannedLaunch> launches;
};

PlannedRun planned_run(const Implementation& implementation, const Card& card, const Case& made,
                       const tk_device_info& device);

}  // namespace harness
