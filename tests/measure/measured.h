// SPDX-License-Identifier: Apache-2.0
// The device of measured_device.cpp.
#pragma once

#include "harness/plugins/device.h"

namespace measure_test {

class Measured {
 public:
  explicit Measured(const char* name = "measured:1")
      : registry_({}), device_((registry_.add(TOOLKIT_MEASURED_DEVICE), registry_), name) {}
  const harness::Device& device() const { return device_; }
  harness::Registry& registry() { return registry_; }

 private:
  harness::Registry registry_;
  harness::Device device_;
};

}  // namespace measure_test
