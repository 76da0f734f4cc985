// SPDX-License-Identifier: Apache-2.0
// The host side of the dialect: starting kernels. "backend_launch.h" is found by the include path,
// like "backend.h".
//
//   device::launch(kernel, device::Grid{x, y, z}, threads, dynamic_shared_bytes, stream,
//   params...);
//
// An empty grid launches nothing. A wrong configuration, and whatever the backend reports, is a
// LaunchError. device::multiprocessors() and device::shared_bytes_of_block() (static and dynamic, the
// most that can be asked for) tell of the current device; a plan made from them has to give the same
// result in workspace() and run(). While a plan is made for a device that need not be here
// (planning.h), they tell of that one and launches are reported, not made.
//
// device::launch_overlapping(...) likewise, but the kernel may begin while the launch in front of it
// still runs: it calls device::wait_for_launch_before() before it touches what that one writes, in
// every block, and the one in front calls device::allow_next_launch() as early as it likes. Where
// the hardware cannot, launches just follow each other.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace device {

struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace device

#include "backend_launch.h"
