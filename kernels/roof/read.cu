// SPDX-License-Identifier: Apache-2.0
// roof.read: all threads stride over the source, or the blocks take turns over tiles of it; some
// loads in flight a thread. Streams from memory want the first, reads from the L2 the second.
#include "device/launch.h"
#include "device/op.h"
#include "roof/read.h"
#include "roof/words.h"

namespace roof {
namespace {

constexpr int kShift = 37;  // blocks, from one pass to the next

template <int kThreads, int kInFlight, bool kTiles>
DEVICE_KERNEL(kThreads)
read_kernel(const Words* source, int64_t count, int passes, uint32_t* sums) {
  DEVICE_SHARED(uint32_t, scratch, 32);
  const int64_t threads = int64_t(device::blocks_x()) * kThreads;
  const int64_t apart = kTiles ? kThreads : threads;  // two loads of a thread
  uint32_t sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    // The share of another block in each pass: its own would come from the first-level cache.
    const int share = int((device::block_x() + int64_t(pass) * kShift) % device::blocks_x());
    int64_t i = int64_t(share) * kThreads * (kTiles ? kInFlight : 1) + device::thread();
    for (; i + (kInFlight - 1) * apart < count; i += kInFlight * threads) {
      Words words[kInFlight];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) words[k] = source[i + k * apart];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) sum += sum_of(words[k]);
    }
    for (int k = 0; k < kInFlight && i + k * apart < count; ++k)
      sum += sum_of(source[i + k * apart]);
  }
  sum = device::block_sum(sum, scratch);
  if (device::thread() == 0) sums[device::block_x()] = sum;
}

template <int kThreads, int kInFlight, bool kTiles>
void launch_read(const device::OpCall& call) {
  const auto source = call.tensor("source");
  device::launch(read_kernel<kThreads, kInFlight, kTiles>,
                 device::Grid{call.args.integer("blocks")}, kThreads, 0, call.stream,
                 source.data<const Words>(), source.size(0) / 4, int(call.args.integer("passes")),
                 call.tensor("sums").data<uint32_t>());
}

struct Read {
  static constexpr const toolkit::Contract& contract = read::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    call.args.integer("in_flight") == 4 ? launch_read<512, 4, false>(call)
                                        : launch_read<128, 16, true>(call);
  }
};
DEVICE_OP(Read)

}  // namespace
}  // namespace roof
