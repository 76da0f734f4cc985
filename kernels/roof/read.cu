// SPDX-License-Identifier: Apache-2.0
// roof.read: the blocks take turns over tiles of the source, some loads in flight a thread.
#include "device/launch.h"
#include "device/op.h"
#include "roof/read.h"
#include "roof/words.h"

namespace roof {
namespace {

constexpr int kShift = 37;  // blocks, from one pass to the next

template <int kThreads, int kInFlight>
DEVICE_KERNEL(kThreads)
read_kernel(const Words* source, int64_t count, int passes, uint32_t* sums) {
  DEVICE_SHARED(uint32_t, scratch, 32);
  constexpr int64_t kTile = int64_t(kInFlight) * kThreads;
  uint32_t sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    // The share of another block in each pass: its own would come from the first-level cache.
    const int share = int((device::block_x() + int64_t(pass) * kShift) % device::blocks_x());
    for (int64_t tile = share; tile * kTile < count; tile += device::blocks_x()) {
      const int64_t first = tile * kTile + device::thread();
      if ((tile + 1) * kTile > count) {  // the last one
        for (int64_t i = first; i < count; i += kThreads) sum += sum_of(source[i]);
        continue;
      }
      Words words[kInFlight];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) words[k] = source[first + k * kThreads];
      DEVICE_UNROLL
      for (int k = 0; k < kInFlight; ++k) sum += sum_of(words[k]);
    }
  }
  sum = device::block_sum(sum, scratch);
  if (device::thread() == 0) sums[device::block_x()] = sum;
}

template <int kThreads, int kInFlight>
void launch_read(const device::OpCall& call) {
  const auto source = call.tensor("source");
  device::launch(read_kernel<kThreads, kInFlight>, device::Grid{call.args.integer("blocks")},
                 kThreads, 0, call.stream, source.data<const Words>(), source.size(0) / 4,
                 int(call.args.integer("passes")), call.tensor("sums").data<uint32_t>());
}

struct Read {
  static constexpr const toolkit::Contract& contract = read::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    call.args.integer("in_flight") == 4 ? launch_read<256, 4>(call) : launch_read<128, 16>(call);
  }
};
DEVICE_OP(Read)

}  // namespace
}  // namespace roof
