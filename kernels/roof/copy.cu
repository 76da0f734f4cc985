// SPDX-License-Identifier: Apache-2.0
// roof.copy: the blocks take turns over tiles of the source; some loads in flight a thread, then
// the stores. Beside it the runtime's own copy, which is what the kernel is held against.
#include "device/launch.h"
#include "device/op.h"
#include "roof/copy.h"
#include "roof/words.h"

namespace roof {
namespace {

template <int kThreads, int kInFlight>
DEVICE_KERNEL(kThreads)
copy_kernel(const Words* source, Words* target, int64_t count) {
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

template <int kThreads, int kInFlight>
void launch_copy(const device::OpCall& call) {
  const auto source = call.tensor("source");
  device::launch(copy_kernel<kThreads, kInFlight>, device::Grid{call.args.integer("blocks")},
                 kThreads, 0, call.stream, source.data<const Words>(),
                 call.tensor("target").data<Words>(), source.size(0) / 4);
}

struct Copy {
  static constexpr const toolkit::Contract& contract = copy::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    call.args.integer("in_flight") == 1 ? launch_copy<copy::kThreads, 1>(call)
                                        : launch_copy<copy::kThreads, 4>(call);
  }
};
DEVICE_OP(Copy)

struct RuntimeCopy {
  static constexpr const toolkit::Contract& contract = copy::contract;
  static constexpr const char* implementation = "memcpy";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const auto source = call.tensor("source");
    device::copy_memory(call.tensor("target").data<void>(), source.data<const void>(),
                        size_t(source.size(0)) * 4, call.stream);
  }
};
DEVICE_OP(RuntimeCopy)

}  // namespace
}  // namespace roof
