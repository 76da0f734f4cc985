// SPDX-License-Identifier: Apache-2.0
// roof.empty: one wave a launch that ends at once.
#include "device/device.h"
#include "device/launch.h"
#include "device/op.h"
#include "roof/empty.h"

namespace roof {
namespace {

DEVICE_KERNEL(device::kWave) empty_kernel() {}

struct Empty {
  static constexpr const toolkit::Contract& contract = empty::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    for (int64_t i = 0; i < call.args.integer("nodes"); ++i)
      device::launch(empty_kernel, device::Grid{}, device::kWave, 0, call.stream);
  }
};
DEVICE_OP(Empty)

}  // namespace
}  // namespace roof
