// SPDX-License-Identifier: Apache-2.0
// Bulk copies (device/nvidia.h) in the executor: what arrives, when, and what misuse is reported.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "device/launch.h"
#include "device/nvidia.h"

namespace {

constexpr uint32_t kBytes = 256, kWords = kBytes / 4;

enum class Fault {
  none,
  unaligned,
  not_shared,
  too_many_bytes,
  never_announced,
  twice,
  never_waited
};

// Lane 3 copies pieces of 256 bytes, two ahead; all lanes add up what they read.
DEVICE_KERNEL(device::kWave)
adds_pieces(const uint32_t* in, uint32_t* out, int pieces, Fault fault) {
  DEVICE_SHARED(uint32_t, ring, 2 * kWords + 4);
  DEVICE_SHARED(device::BulkBarrier, barriers, 2);
  const int lane = device::lane();
  const auto barrier = [&](int i) {
    return device::shared_address(device::data(barriers)) +
           uint32_t(i % 2) * uint32_t(sizeof(device::BulkBarrier));
  };
  if (lane < 2) device::bulk_begin(barrier(lane));
  device::bulk_begun();
  device::sync_wave();
  const auto put = [&](int i) {
    if (i >= pieces || lane != 3) return;
    auto to = device::shared_address(device::data(ring)) + uint32_t(i % 2) * kBytes;
    if (fault == Fault::unaligned) to += 4;
    if (fault == Fault::not_shared) to = device::shared_address(out);
    if (fault != Fault::never_announced)
      device::bulk_announce(barrier(i), fault == Fault::too_many_bytes ? 16 : kBytes);
    if (fault == Fault::twice) device::bulk_announce(barrier(i), kBytes);
    device::bulk_copy(to, in + uint32_t(i) * kWords, kBytes, barrier(i), device::l2_evict_first());
  };
  put(0);
  put(1);
  device::sync_wave();
  if (fault == Fault::never_waited) return;
  uint32_t sum = 0;
  for (int i = 0; i < pieces; ++i) {
    const uint32_t before = ring[i % 2 * int(kWords) + lane];
    device::sync_wave();
    device::bulk_wait(barrier(i), uint32_t(i / 2 % 2));
    if (before != ~uint32_t{0}) sum += 1000000;  // it was there before the wait
    sum += ring[i % 2 * int(kWords) + lane] + ring[i % 2 * int(kWords) + 32 + lane];
    device::sync_wave();
    put(i + 2);
    device::sync_wave();
  }
  out[lane] = sum;
}

// Each wave waits for a piece that another wave copies, once that has had its own: wave 0 has the
// first. Wave `idle` copies nothing.
constexpr int kRelay = 4;
DEVICE_KERNEL(kRelay* device::kWave)
relays(const uint32_t* in, uint32_t* out, int idle) {
  DEVICE_SHARED(uint32_t, pieces, kRelay * kWords);
  DEVICE_SHARED(device::BulkBarrier, barriers, kRelay);
  DEVICE_SHARED(uint32_t, done, 1);
  const int lane = device::lane(), wave = device::wave();
  const auto barrier = [&](int i) {
    return device::shared_address(device::data(barriers)) +
           uint32_t(i) * uint32_t(sizeof(device::BulkBarrier));
  };
  const auto put = [&](int i) {
    device::bulk_announce(barrier(i), kBytes);
    device::bulk_copy(device::shared_address(device::data(pieces) + uint32_t(i) * kWords),
                      in + uint32_t(i) * kWords, kBytes, barrier(i), device::l2_evict_first());
  };
  if (device::thread() < kRelay) device::bulk_begin(barrier(device::thread()));
  device::bulk_begun();
  if (device::thread() == 0) done[0] = 0;
  device::sync_block();
  if (device::thread() == 0) put(0);
  device::bulk_wait(barrier(wave), 0);
  const uint32_t sum = pieces[wave * int(kWords) + lane];
  device::sync_wave();
  if (lane == 0) {
    const uint32_t before = device::count_in(device::data(done));
    if (wave + 1 < kRelay && wave != idle) put(wave + 1);
    out[kRelay * 32 + wave] = before;
  }
  out[device::thread()] = sum;
}

TEST(SimtBulk, WavesWaitForWhatOthersCopyLater) {
  alignas(16) uint32_t in[kRelay * kWords], out[kRelay * 33];
  std::iota(std::begin(in), std::end(in), 1u);
  device::launch(relays, {1}, kRelay * device::kWave, 0, nullptr, in, out, -1);
  for (uint32_t i = 0; i < kRelay * 32; ++i) ASSERT_EQ(out[i], in[i / 32 * kWords + i % 32]) << i;
  for (uint32_t w = 0; w < kRelay; ++w) EXPECT_EQ(out[kRelay * 32 + w], w);
  try {
    device::launch(relays, {1}, kRelay * device::kWave, 0, nullptr, in, out, 1);
    FAIL() << "wave 2 waits for nobody";
  } catch (const device::LaunchError& e) {
    EXPECT_NE(std::string(e.what()).find("waits for bytes that nobody has announced"),
              std::string::npos)
        << e.what();
  }
}

std::string report(Fault fault) {
  alignas(16) static uint32_t in[2 * kWords], out[kWords];
  try {
    device::launch(adds_pieces, {1}, device::kWave, 0, nullptr, in, out, 2, fault);
  } catch (const device::LaunchError& e) {
    return e.what();
  }
  return {};
}

TEST(SimtBulk, PiecesArriveAtTheWaitAndNotBefore) {
  constexpr int kPieces = 5;
  alignas(16) uint32_t in[kPieces * kWords], out[32];
  std::iota(std::begin(in), std::end(in), 1u);
  device::launch(adds_pieces, {1}, device::kWave, 0, nullptr, in, out, kPieces, Fault::none);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kPieces; ++i)
      sum += in[i * kWords + lane] + in[i * kWords + 32 + lane];
    ASSERT_EQ(out[lane], sum) << lane;
  }
}

TEST(SimtBulk, ReportsMisuse) {
  const auto holds = [](Fault fault, const char* text) {
    const std::string what = report(fault);
    EXPECT_NE(what.find(text), std::string::npos) << what;
  };
  holds(Fault::unaligned, "have to be multiples of 16");
  holds(Fault::not_shared, "the target is not in shared memory");
  holds(Fault::too_many_bytes, "more bytes than were announced");
  holds(Fault::never_announced, "more bytes than were announced");
  holds(Fault::twice, "nobody has waited for what was announced before");
  holds(Fault::never_waited, "2 bulk barriers whose bytes were announced and no bulk_wait covered");
}

}  // namespace
