// SPDX-License-Identifier: Apache-2.0
// roof.read: all threads stride over the source, four loads in flight each.
#include "device/launch.h"
#include "device/op.h"
#include "roof/read.h"
#include "roof/words.h"

namespace roof {
namespace {

constexpr int kThreads = 512, kInFlight = 4;
constexpr int kShift = 37;  // blocks, from one pass to the next

DEVICE_KERNEL(kThreads)
read_kernel(const Words* source, int64_t count, int passes, uint32_t* sums) {
  DEVICE_SHARED(uint32_t, scratch, 32);
  const int64_t step = int64_t(device::blocks_x()) * device::threads();
  uint32_t sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    // The share of another block in each pass: its own would come from the first-level cache.
    const int share = int((device::block_x() + int64_t(pass) * kShift) % device::blocks_x());
    const int64_t first = int64_t(share) * device::threads() + device::thread();
    int64_t i = first;
    for (; i + (kInFlight - 1) * step < count; i += kInFlight * step) {
      Words words[kInFlight];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) words[k] = source[i + k * step];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) sum += sum_of(words[k]);
    }
    for (; i < count; i += step) sum += sum_of(source[i]);
  }
  sum = device::block_sum(sum, scratch);
  if (device::thread() == 0) sums[device::block_x()] = sum;
}

struct Read {
  static constexpr const toolkit::Contract& contract = read::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const auto source = call.tensor("source");
    device::launch(read_kernel, device::Grid{call.args.integer("blocks")}, kThreads, 0, call.stream,
                   source.data<const Words>(), source.size(0) / 4, int(call.args.integer("passes")),
                   call.tensor("sums").data<uint32_t>());
  }
};
DEVICE_OP(Read)

}  // namespace
}  // namespace roof
