// SPDX-License-Identifier: Apache-2.0
// roof.gather: a group of lanes reads a segment, 16 bytes a lane, at least four loads in flight.
#include "device/launch.h"
#include "device/op.h"
#include "roof/gather.h"
#include "roof/words.h"

namespace roof {
namespace {

constexpr int kThreads = 256, kInFlight = 4;

// kPieces: 16-byte pieces of a segment.
template <int kPieces>
DEVICE_KERNEL(kThreads)
gather_kernel(const Words* source, const int32_t* ids, int64_t count, uint32_t* sums) {
  DEVICE_SHARED(uint32_t, scratch, 32);
  constexpr int kGroup = kPieces < device::kWave ? kPieces : device::kWave;
  constexpr int kLoads = kPieces / kGroup;  // of a lane for one segment
  constexpr int kSegments = kLoads < kInFlight ? kInFlight / kLoads : 1;  // at once
  const int per_block = device::threads() / kGroup;
  const int64_t groups = int64_t(device::blocks_x()) * per_block;
  const int64_t group = int64_t(device::block_x()) * per_block + device::thread() / kGroup;
  const int member = device::thread() % kGroup;
  uint32_t sum = 0;
  int64_t i = group;
  for (; i + (kSegments - 1) * groups < count; i += kSegments * groups) {
    int64_t first[kSegments];
    DEVICE_UNROLL
    for (int s = 0; s < kSegments; ++s) first[s] = int64_t(ids[i + s * groups]) * kPieces + member;
    Words words[kSegments][kLoads];
    DEVICE_UNROLL
    for (int s = 0; s < kSegments; ++s) {
      DEVICE_UNROLL
      for (int l = 0; l < kLoads; ++l) words[s][l] = source[first[s] + l * kGroup];
    }
    DEVICE_UNROLL
    for (int s = 0; s < kSegments; ++s) {
      DEVICE_UNROLL
      for (int l = 0; l < kLoads; ++l) sum += sum_of(words[s][l]);
    }
  }
  for (; i < count; i += groups) {
    const int64_t first = int64_t(ids[i]) * kPieces + member;
    DEVICE_UNROLL
    for (int l = 0; l < kLoads; ++l) sum += sum_of(source[first + l * kGroup]);
  }
  sum = device::block_sum(sum, scratch);
  if (device::thread() == 0) sums[device::block_x()] = sum;
}

template <int kPieces>
void launch_gather(const device::OpCall& call) {
  const auto ids = call.tensor("ids");
  device::launch(gather_kernel<kPieces>, device::Grid{call.args.integer("blocks")}, kThreads, 0,
                 call.stream, call.tensor("source").data<const Words>(), ids.data<const int32_t>(),
                 ids.size(0), call.tensor("sums").data<uint32_t>());
}

struct Gather {
  static constexpr const toolkit::Contract& contract = gather::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    switch (call.tensor("source").size(1)) {
      case 64:
        return launch_gather<16>(call);
      case 128:
        return launch_gather<32>(call);
      case 256:
        return launch_gather<64>(call);
      case 512:
        return launch_gather<128>(call);
      default:
        return launch_gather<256>(call);
    }
  }
};
DEVICE_OP(Gather)

}  // namespace
}  // namespace roof
