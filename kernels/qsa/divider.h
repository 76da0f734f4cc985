// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows.
#pragma once

#include <bit>
#include <cstdint>

#include "device/device.h"

namespace qsa {

// n / divisor for 0 <= n < 2^31, without a division.
struct Divider {
  uint32_t factor, shift;
  explicit Divider(uint32_t divisor) : shift(31 + uint32_t(std::bit_width(divisor - 1))) {
    factor = uint32_t(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  DEVICE_FUNCTION uint32_t operator()(uint32_t n) const {
    return uint32_t(uint64_t{n} * factor >> shift);
  }
};

}  // namespace qsa
