// SPDX-License-Identifier: Apache-2.0
// Four words that are loaded at once.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace roof {

struct alignas(16) Words {
  uint32_t x[4];
};

DEVICE_FUNCTION uint32_t sum_of(const Words& w) { return w.x[0] + w.x[1] + w.x[2] + w.x[3]; }

}  // namespace roof
