// SPDX-License-Identifier: Apache-2.0
// The host side of the dialect: starting kernels. "backend_launch.h" is found by the include path,
// like "backend.h".
//
//   device::launch(kernel, device::Grid{x, y, z}, threads, dynamic_shared_bytes, stream,
//   params...);
//
// device::launch_overlapping(the same): the kernel may start before the one before it on the stream
// has ended, and waits for that by device::wait_for_previous() before it touches any memory that
// kernels write. Where it cannot be, it is launch().
//
// An empty grid launches nothing. A wrong configuration, and whatever the backend reports, is a
// LaunchError. device::copy_memory(to, from, bytes, stream) enqueues the runtime's own copy within
// the device. device::multiprocessors() and device::shared_bytes_of_block() (static and dynamic, the
// most that can be asked for) tell of the current device, device::has_warpgroups() whether
// device/warpgroup.h can be used there (and 227 KiB of shared memory); a plan made from them has to
// give the same result in workspace() and run(). While a plan is made for a device that need not be
// here (planning.h), they tell of that one and launches are reported, not made.
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
