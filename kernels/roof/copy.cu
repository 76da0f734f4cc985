// SPDX-License-Identifier: Apache-2.0
// roof.copy: the blocks take turns over tiles of the source; four loads in flight a thread, then
// the stores.
#include "device/launch.h"
#include "device/op.h"
#include "roof/copy.h"
#include "roof/words.h"

namespace roof {
namespace {

constexpr int kThreads = 512, kInFlight = 4;

DEVICE_KERNEL(kThreads) copy_kernel(const Words* source, Words* target, int64_t count) {
  constexpr int64_t kTile = int64_t(kInFlight) * kThreads;
  for (int64_t tile = device::block_x(); tile * kTile < count; tile += device::blocks_x()) {
    const int64_t first = tile * kTile + device::thread();
    Words words[kInFlight];
    DEVICE_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (first + k * kThreads < count) words[k] = source[first + k * kThreads];
    DEVICE_UNROLL
    for (int k = 0; k < kInFlight; ++k)
      if (first + k * kThreads < count) target[first + k * kThreads] = words[k];
  }
}

struct Copy {
  static constexpr const toolkit::Contract& contract = copy::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const auto source = call.tensor("source");
    device::launch(copy_kernel, device::Grid{call.args.integer("blocks")}, kThreads, 0, call.stream,
                   source.data<const Words>(), call.tensor("target").data<Words>(),
                   source.size(0) / 4);
  }
};
DEVICE_OP(Copy)

}  // namespace
}  // namespace roof
