// SPDX-License-Identifier: Apache-2.0
// Probes of device/nvidia.h, and one op that runs them.

#include <type_traits>

#include "device/launch.h"
#include "device/nvidia.h"
#include "probe_contract.h"

namespace conformance {
namespace {

using device::bit_cast;

// Four 8x8 matrices of halves, a word being two columns of a row: as they lie, transposed, and the
// first one transposed in registers.
DEVICE_KERNEL(device::kWave) moved_matrices(const uint32_t* in, uint32_t* out) {
  DEVICE_SHARED(uint32_t, words, kMovedMatrices * 32);
  DEVICE_SHARED(uint32_t, copied, kMovedMatrices * 32 + 4);
  const int lane = device::lane();
  for (int i = lane; i < kMovedMatrices * 32; i += device::kWave) words[i] = in[i];
  device::sync_wave();
  uint32_t as_they_lie[4], transposed[4];
  const uint32_t* row = device::data(words) + lane * 4;
  device::load_matrices(as_they_lie, row);
  device::load_matrices_transposed(transposed, row);
  uint32_t* o = out + lane * kMovedWords;
  for (int m = 0; m < kMovedMatrices; ++m) {
    *o++ = as_they_lie[m];
    *o++ = transposed[m];
  }
  *o++ = device::transpose_8x8(as_they_lie[0]);
  const device::Words4 own = device::load_once16(in + lane * 4);
  for (int i = 0; i < 4; ++i) *o++ = own.x[i];
  const device::Words4 of_line = device::load_once16_of_line(in + lane * 4);
  for (int i = 0; i < 4; ++i) *o++ = of_line.x[i];
  const device::SharedAddress at = device::shared_address(row);
  const device::Words2 pair = device::load_shared8(at);
  *o++ = pair.x[0];
  *o++ = pair.x[1];
  *o++ = device::load_shared4(at + 8);
  *o++ = device::load_shared2(at + 14);
  // 16 bytes behind both addresses; the last lane takes lane 0's.
  const device::SharedAddress to = device::shared_address(device::data(copied) + lane * 4);
  device::copy_async16_at<16>(to, in + lane % 31 * 4);
  device::copy_async_commit();
  device::copy_async_wait<0>();
  device::sync_wave();
  for (int i = 0; i < 4; ++i) *o++ = copied[(lane + 1) * 4 + i];
}

// The product whose fragments are filled by the layout that dialect.md gives.
template <class T>
DEVICE_KERNEL(device::kWave)
multiplied(const uint32_t* in, uint32_t* out) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  const uint32_t *in_b = in + kMmaM * kMmaK, *in_c = in_b + kMmaK * kMmaN;
  uint32_t a[4], b[2];
  float d[4];
  for (int r = 0; r < 4; ++r) {
    const uint32_t* low = in + (group + r % 2 * 8) * kMmaK + member * 2 + r / 2 * 8;
    a[r] = low[0] | low[1] << 16;
  }
  for (int r = 0; r < 2; ++r) {
    const uint32_t* low = in_b + (member * 2 + r * 8) * kMmaN + group;
    b[r] = low[0] | low[kMmaN] << 16;
  }
  for (int e = 0; e < 4; ++e)
    d[e] = bit_cast<float>(in_c[(group + e / 2 * 8) * kMmaN + member * 2 + e % 2]);
  float before[4];
  for (int e = 0; e < 4; ++e) before[e] = d[e];
  device::multiply_16x8x16<T>(d, a, b);
  // The same of f16 in two steps of k.
  float steps[4];
  for (int e = 0; e < 4; ++e) steps[e] = before[e];
  if constexpr (std::is_same_v<T, device::f16>) {
    const uint32_t low[2] = {a[0], a[1]}, high[2] = {a[2], a[3]};
    device::multiply_16x8x8(steps, low, b[0]);
    device::multiply_16x8x8(steps, high, b[1]);
  }
  for (int e = 0; e < 4; ++e) {
    const int at = (group + e / 2 * 8) * kMmaN + member * 2 + e % 2;
    out[at] = bit_cast<uint32_t>(d[e]);
    out[kMmaM * kMmaN + at] = bit_cast<uint32_t>(steps[e]);
  }
}

// The same of signed bytes, one in each word of the input.
DEVICE_KERNEL(device::kWave) multiplied_bytes(const uint32_t* in, uint32_t* out) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  const uint32_t *in_b = in + kMmaM * kBytesK, *in_c = in_b + kBytesK * kMmaN;
  uint32_t a[4] = {}, b[2] = {};
  int32_t d[4];
  for (int i = 0; i < 4; ++i) {
    const int k = member * 4 + i;
    for (int r = 0; r < 4; ++r)
      a[r] |= (in[(group + r % 2 * 8) * kBytesK + k + r / 2 * 16] & 255) << (8 * i);
    for (int r = 0; r < 2; ++r) b[r] |= (in_b[(k + r * 16) * kMmaN + group] & 255) << (8 * i);
  }
  const auto at = [&](int e) { return (group + e / 2 * 8) * kMmaN + member * 2 + e % 2; };
  for (int e = 0; e < 4; ++e) d[e] = static_cast<int32_t>(in_c[at(e)] >> 8);
  device::multiply_16x8x32(d, a, b);
  for (int e = 0; e < 4; ++e) out[at(e)] = static_cast<uint32_t>(d[e]);
}

DEVICE_KERNEL(kThreads) bits_and_halves(const uint32_t* in, uint32_t* out) {
  using device::bf16;
  using device::f16;
  const int i = device::block_x() * kThreads + device::thread();
  const uint32_t a = in[i], b = in[(i + 1) % kValues];
  uint32_t* o = out + i * kBitsWords;
  *o++ = device::permute_bytes(a, b, a ^ b >> 3);
  *o++ = device::funnel_shift_right(a, b, b >> 7);
  *o++ = device::pack_halves<bf16>(bit_cast<float>(a), bit_cast<float>(b));
  *o++ = device::pack_halves<f16>(bit_cast<float>(a), bit_cast<float>(b));
  *o++ = bit_cast<uint32_t>(device::low_half<bf16>(a));
  *o++ = bit_cast<uint32_t>(device::high_half<bf16>(a));
  *o++ = bit_cast<uint32_t>(device::low_half<f16>(a));
  *o++ = bit_cast<uint32_t>(device::high_half<f16>(a));
  *o++ = device::multiply_f16x2(a, b);
  *o++ = device::min_halves<bf16>(a, b);
  *o++ = device::max_halves<bf16>(a, b);
  *o++ = device::min_halves<f16>(a, b);
  *o++ = device::max_halves<f16>(a, b);
  *o++ = bit_cast<uint32_t>(device::saturate(bit_cast<float>(a)));
  *o++ = device::pack_e4m3fn(bit_cast<float>(a), bit_cast<float>(b));
  *o++ = device::e4m3fn_to_f16x2(a);
  *o++ = device::pack_e4m3fn_pair<f16>(a);
  *o++ = device::pack_e4m3fn_pair<bf16>(a);
  *o++ = device::lookup32(a, b);
  *o++ = device::look_up_bytes(a, b, (a ^ b >> 3) & 0x77777777u);
  *o++ = static_cast<uint32_t>(device::dot_bytes(a, b, static_cast<int32_t>(a >> 8)));
  *o++ = bit_cast<uint32_t>(device::exp2_fast(bit_cast<float>(a)));
  *o++ = bit_cast<uint32_t>(device::rsqrt_fast(bit_cast<float>(a)));
  *o++ = bit_cast<uint32_t>(device::reciprocal_fast(bit_cast<float>(a)));
}

// Pieces by bulk copies, two ahead, and out again.
DEVICE_KERNEL(device::kWave) bulk_copies(const uint32_t* in, uint32_t* out) {
  DEVICE_SHARED(uint32_t, ring, 2 * 64);
  DEVICE_SHARED(device::BulkBarrier, barriers, 2);
  const int lane = device::lane();
  const auto barrier = [&](int i) {
    return device::shared_address(device::data(barriers)) +
           uint32_t(i % 2) * uint32_t(sizeof(device::BulkBarrier));
  };
  const auto slot = [&](int i) {
    return device::shared_address(device::data(ring)) + uint32_t(i % 2) * 256;
  };
  if (lane < 2) device::bulk_begin(barrier(lane));
  device::bulk_begun();
  device::sync_wave();
  const auto put = [&](int i) {
    if (i >= kBulkPieces || lane != i) return;
    device::bulk_announce(barrier(i), 256);
    device::bulk_copy(slot(i), in + i * 64, 128, barrier(i), device::l2_evict_first());
    device::bulk_copy(slot(i) + 128, in + i * 64 + 32, 128, barrier(i), device::l2_evict_first());
  };
  put(0);
  put(1);
  device::sync_wave();
  for (int i = 0; i < kBulkPieces; ++i) {
    device::bulk_wait(barrier(i), uint32_t(i / 2 % 2));
    if (lane < 16)
      device::store_once16(out + i * 64 + lane * 4,
                           device::load_shared16(slot(i) + uint32_t(lane) * 16));
    device::sync_wave();
    put(i + 2);
    device::sync_wave();
  }
}

// Lets the next launch start at once, and is slow to write what that one reads.
DEVICE_KERNEL(kThreads) slow_launch(const uint32_t* in, uint32_t* out) {
  device::allow_next();
  const int i = device::block_x() * kThreads + device::thread();
  uint32_t x = in[i];
  for (int step = 0; step < kSlowSteps; ++step) x = x * 1664525 + 1013904223 + (x >> 16);
  out[i] = x;
}
DEVICE_KERNEL(kThreads) launch_behind(const uint32_t*, uint32_t* out) {
  device::wait_for_previous();
  const int i = device::block_x() * kThreads + device::thread();
  out[kOverlapping + i] = out[kOverlapping - 1 - i];
}

struct NvidiaProbeOp {
  static constexpr const toolkit::Contract& contract = kNvidia;
  static constexpr const char* implementation = "sm_80";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const auto launch = [&](auto kernel, int64_t blocks = 1, int threads = device::kWave) {
      device::launch(kernel, device::Grid{blocks}, threads, 0, call.stream,
                     call.tensor("in").data<const uint32_t>(), call.tensor("out").data<uint32_t>());
    };
    switch (call.args.integer("probe")) {
      case kMovedMatrixHalves:
        return launch(moved_matrices);
      case kMultipliedBf16:
        return launch(multiplied<device::bf16>);
      case kMultipliedF16:
        return launch(multiplied<device::f16>);
      case kMultipliedBytes:
        return launch(multiplied_bytes);
      case kBitsAndHalves:
        return launch(bits_and_halves, kValues / kThreads, kThreads);
      case kBulkCopies:
        if (!device::hopper_or_later()) throw device::Unsupported("because it is below sm_90");
        return launch(bulk_copies);
      case kOverlappedLaunches:
        launch(slow_launch, kOverlapping / kThreads, kThreads);
        return device::launch_overlapping(
            launch_behind, device::Grid{kOverlapping / kThreads}, kThreads, 0, call.stream,
            call.tensor("in").data<const uint32_t>(), call.tensor("out").data<uint32_t>());
    }
  }
};

}  // namespace
}  // namespace conformance

using conformance::NvidiaProbeOp;
DEVICE_OP(NvidiaProbeOp)
