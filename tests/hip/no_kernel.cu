// SPDX-License-Identifier: Apache-2.0
// Compiles, but launches no kernel and so generates no device code.
#include "device/device.h"

template <class T>
DEVICE_KERNEL(64) never_launched(T* p) {
  p[device::thread()] = T(1);
}
