// SPDX-License-Identifier: Apache-2.0
// An op's run() without a device: while a Planning stands, this thread's launches are reported
// instead of made, and what a plan asks of the device is answered from a description. Host code.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

#include "toolkit/plugin.h"

namespace device {

struct Planning {
  const tk_device_info* device;
  void (*launched)(void* user, const tk_launch* launch);
  void* user;
};

// Of this thread, null where launches are real.
inline const Planning*& planning() {
  static thread_local const Planning* current = nullptr;
  return current;
}

// 90 of "sm_90"; 0 where the planned device is no NVIDIA GPU.
inline int planned_sm() {
  const std::string arch = planning()->device->arch;
  return arch.starts_with("sm_") ? std::atoi(arch.c_str() + 3) : 0;
}

class PlanningScope {
 public:
  explicit PlanningScope(const Planning& p) { planning() = &p; }
  ~PlanningScope() { planning() = nullptr; }
  PlanningScope(const PlanningScope&) = delete;
  PlanningScope& operator=(const PlanningScope&) = delete;
};

inline void report_launch(const std::string& kernel, const int64_t (&grid)[3], int threads,
                          size_t dynamic_shared_bytes) {
  const tk_launch launch{sizeof(tk_launch),
                         threads,
                         kernel.c_str(),
                         {grid[0], grid[1], grid[2]},
                         dynamic_shared_bytes};
  planning()->launched(planning()->user, &launch);
}

}  // namespace device
