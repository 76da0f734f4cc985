// SPDX-License-Identifier: Apache-2.0
// The executor from a kernel's side: what it runs, in which orders, and what it reports. Compiled
// for both widths.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/launch.h"

namespace {

using device::kWave;

// The text of the LaunchError that `run` throws; empty where it throws none.
template <class Run>
std::string report(Run run) {
  try {
    run();
  } catch (const device::LaunchError& e) {
    return e.what();
  }
  return {};
}

void expect_in(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n in: " << text;
}

// How reports give that line of this file.
std::string line(int number) { return "executor_test.cpp:" + std::to_string(number); }

// Every behaviour has to hold in every order.
class Simt : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ASSERT_TRUE(simt::parse_order(GetParam(), simt::options())); }
  void TearDown() override { simt::options() = {}; }
};
INSTANTIATE_TEST_SUITE_P(Orders, Simt, testing::Values("forward", "reverse", "seed:1", "seed:2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ':');
                           return name;
                         });

DEVICE_KERNEL(256) indices(int* out) {
  const int block =
      (device::block_z() * device::blocks_y() + device::block_y()) * device::blocks_x() +
      device::block_x();
  const int at = block * device::threads() + device::wave() * kWave + device::lane();
  out[at] = device::thread() + 1000 * device::waves();
}

TEST_P(Simt, RunsEveryThreadOfAThreeDimensionalGridOnce) {
  std::vector<int> out(2 * 3 * 4 * 256, -1);
  device::launch(indices, {2, 3, 4}, 256, 0, nullptr, out.data());
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], static_cast<int>(i % 256) + 1000 * (256 / kWave)) << i;
}

TEST_P(Simt, SpreadsBlocksOverOsThreads) {
  simt::options().os_threads = 4;
  std::vector<int> out(50 * 64, -1);
  device::launch(indices, {50}, 64, 0, nullptr, out.data());
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i] % 1000, static_cast<int>(i % 64)) << i;
}

TEST(SimtLaunch, AnEmptyGridLaunchesNothing) {
  int out = 7;
  device::launch(indices, {0, 5, 1}, 64, 0, nullptr, &out);
  EXPECT_EQ(out, 7);
}

TEST(SimtLaunch, RefusesConfigurationsThatNoDeviceTakes) {
  int* out = nullptr;
  expect_in(report([&] { device::launch(indices, {1}, 65, 0, nullptr, out); }),
            {"indices", "a multiple of " + std::to_string(kWave), "got 65"});
  expect_in(report([&] { device::launch(indices, {1}, 2048, 0, nullptr, out); }),
            {"1 to 1024 threads", "got 2048"});
  expect_in(report([&] {
              device::launch(indices, {1, 70000}, 64, 0, nullptr, out);
            }),
            {"blocks along y", "got 70000"});
  // B37: more shared memory than there is, with both numbers.
  expect_in(report([&] { device::launch(indices, {1}, 64, 1 << 20, nullptr, out); }),
            {"expected at most", "dynamic shared memory", "got 1048576"});
}

DEVICE_KERNEL(64) who_comes_first(int* sequence, int* next) {
  sequence[device::atomic_add(next, 1)] = device::block_x() * 64 + device::thread();
}

TEST(SimtOrder, ForwardReverseAndSeedsAreWhatTheySay) {
  const auto sequence = [](const char* order) {
    EXPECT_TRUE(simt::parse_order(order, simt::options()));
    std::vector<int> s(3 * 64);
    int next = 0;
    device::launch(who_comes_first, {3}, 64, 0, nullptr, s.data(), &next);
    simt::options() = {};
    return s;
  };
  std::vector<int> up(3 * 64);
  std::iota(up.begin(), up.end(), 0);
  EXPECT_EQ(sequence("forward"), up);
  EXPECT_EQ(sequence("fwd"), up);
  const std::vector<int> down(up.rbegin(), up.rend());
  EXPECT_EQ(sequence("reverse"), down);
  EXPECT_EQ(sequence("rev"), down);
  const std::vector<int> one = sequence("seed:1");
  EXPECT_EQ(sequence("seed:1"), one);
  EXPECT_NE(one, up);
  EXPECT_NE(sequence("seed:2"), one);
  EXPECT_EQ(std::set<int>(one.begin(), one.end()).size(), up.size());
}

TEST(SimtOrder, RefusesOtherWords) {
  simt::Options options;
  for (const char* text : {"", "sideways", "seed:", "seed:x", "seed:1x", "seed:-1"})
    EXPECT_FALSE(simt::parse_order(text, options)) << text;
}

DEVICE_KERNEL(64) fresh_memory(float* out, float* dynamic_out) {
  DEVICE_SHARED(float, fixed, 64);
  DEVICE_DYNAMIC_SHARED(float, dynamic);
  const int at = device::block_x() * 64 + device::thread();
  out[at] = fixed[device::thread()];
  dynamic_out[at] = dynamic[device::thread()];
  device::sync_block();
  fixed[device::thread()] = 1;
  dynamic[device::thread()] = 1;
}

TEST_P(Simt, SharedMemoryStartsAsNanInEveryBlock) {
  std::vector<float> a(3 * 64), b(3 * 64);
  for (int launch = 0; launch < 2; ++launch) {
    device::launch(fresh_memory, {3}, 64, 64 * sizeof(float), nullptr, a.data(), b.data());
    for (int t = 0; t < 3 * 64; ++t) ASSERT_TRUE(std::isnan(a[t]) && std::isnan(b[t])) << t;
  }
}

template <class T>
DEVICE_FUNCTION T through_shared(T v) {
  DEVICE_SHARED(T, s, 64);
  s[device::thread()] = v;
  device::sync_block();
  const T other = s[63 - device::thread()];
  device::sync_block();
  return other;
}

DEVICE_KERNEL(64) arrays_of_templates(int* out, double* out_double) {
  for (int i = 0; i < 3; ++i) {
    out[device::thread()] = through_shared(device::thread() + i);
    out_double[device::thread()] = through_shared(device::thread() + 0.5);
  }
}

TEST_P(Simt, ASharedArrayOfAFunctionTemplateIsOnePerInstance) {
  std::vector<int> out(64);
  std::vector<double> out_double(64);
  device::launch(arrays_of_templates, {1}, 64, 0, nullptr, out.data(), out_double.data());
  for (int t = 0; t < 64; ++t) {
    ASSERT_EQ(out[t], 63 - t + 2);
    ASSERT_EQ(out_double[t], 63 - t + 0.5);
  }
}

DEVICE_KERNEL(64) index_outside(int index) {
  DEVICE_SHARED(int, scratch, 40);
  if (device::thread() == 37) scratch[index] = 1;
}
constexpr int kIndexOutside = __LINE__ - 2;

TEST_P(Simt, ReportsAnIndexOutsideASharedArray) {
  for (int index : {40, -1, 1 << 30}) {
    const int in_wave = 37 % kWave;
    expect_in(report([&] {
                device::launch(index_outside, {2, 2}, 64, 0, nullptr, index);
              }),
              {"index_outside, block (",
               "thread 37 (wave " + std::to_string(37 / kWave) + ", lane " +
                   std::to_string(in_wave) + ")",
               line(kIndexOutside),
               "index " + std::to_string(index) +
                   " is outside the shared array 'scratch' of 40 elements"});
  }
  EXPECT_EQ(report([&] { device::launch(index_outside, {2, 2}, 64, 0, nullptr, 39); }), "");
}

DEVICE_KERNEL(64) dynamic_outside() {
  DEVICE_DYNAMIC_SHARED(float, tile);
  tile[device::thread()] = 0;
}

TEST_P(Simt, ReportsAnIndexOutsideTheDynamicMemoryOfTheLaunch) {
  expect_in(report([&] { device::launch(dynamic_outside, {1}, 64, 63 * 4, nullptr); }),
            {"index 63 is outside the shared array 'tile' of 63 elements"});
  EXPECT_EQ(report([&] { device::launch(dynamic_outside, {1}, 64, 64 * 4, nullptr); }), "");
}

DEVICE_KERNEL(64) too_much_shared() {
  DEVICE_SHARED(char, big, 49 * 1024);
  big[0] = 0;
}

TEST(SimtShared, RefusesMoreStaticMemoryThanADeviceHas) {
  expect_in(report([&] { device::launch(too_much_shared, {1}, 64, 0, nullptr); }),
            {"no room for the shared array 'big'", "50176 bytes", "49152 static"});
}

DEVICE_KERNEL(128) one_thread_skips_the_barrier() {
  if (device::thread() == 70) return;
  device::sync_block();
}
DEVICE_KERNEL(128) barrier_in_a_branch(int* out) {
  if (device::thread() < 64) device::sync_block();
  out[device::thread()] = 1;
  if (device::thread() < 64) device::sync_block();
}
DEVICE_KERNEL(128) barrier_against_shuffle(int* out) {
  if (device::lane() == 3)
    device::sync_block();
  else
    out[device::thread()] = device::shuffle(device::thread(), 0);
}
constexpr int kShuffleLine = __LINE__ - 2;

TEST_P(Simt, ReportsABarrierThatOneThreadSkips) {
  expect_in(report([&] { device::launch(one_thread_skips_the_barrier, {1}, 128, 0, nullptr); }),
            {"one_thread_skips_the_barrier, block (0, 0, 0)", "sync_block", "executor_test.cpp:"});
}

TEST_P(Simt, ReportsABarrierThatSomeWavesSkip) {
  std::vector<int> out(128);
  expect_in(report([&] { device::launch(barrier_in_a_branch, {1}, 128, 0, nullptr, out.data()); }),
            {"sync_block"});
}

TEST_P(Simt, ReportsADeadlockWithThePlacesWhereLanesWait) {
  std::vector<int> out(128);
  const std::string text =
      report([&] { device::launch(barrier_against_shuffle, {5}, 128, 0, nullptr, out.data()); });
  expect_in(text, {"barrier_against_shuffle, block (", "deadlock", "lane 3 in sync_block at",
                   "in a shuffle at", line(kShuffleLine)});
}

DEVICE_KERNEL(64) divergent_shuffle(int* out) {
  if (device::lane() % 2)
    out[device::thread()] = device::shuffle(device::thread(), 0);
  else
    out[device::thread()] = device::shuffle(device::thread(), 1);
}
DEVICE_KERNEL(64) vote_against_shuffle(int* out) {
  if (device::lane() == 0)
    out[device::thread()] = device::any(true);
  else
    out[device::thread()] = device::shuffle(device::thread(), 1);
}
DEVICE_KERNEL(64) one_lane_skips_the_shuffle(int* out) {
  if (device::lane() == 5) return;
  out[device::thread()] = device::shuffle_xor(device::thread(), 1);
}
DEVICE_KERNEL(64) shuffle_from_nowhere(int* out) {
  out[device::thread()] = device::shuffle(device::thread(), kWave);
}
DEVICE_KERNEL(128) two_barriers(int* out) {
  if (device::thread() < 64)
    device::sync_block();
  else
    device::sync_block();
  out[device::thread()] = 1;
}

TEST_P(Simt, ReportsDivergentCollectives) {
  std::vector<int> out(128);
  expect_in(report([&] { device::launch(divergent_shuffle, {1}, 64, 0, nullptr, out.data()); }),
            {"divergent_shuffle", "divergent: a shuffle here, while lane",
             "of the same wave wait in a shuffle at"});
  expect_in(report([&] { device::launch(vote_against_shuffle, {1}, 64, 0, nullptr, out.data()); }),
            {"vote_against_shuffle", "divergent", "a vote", "a shuffle"});
  expect_in(
      report([&] { device::launch(one_lane_skips_the_shuffle, {1}, 64, 0, nullptr, out.data()); }),
      {"one_lane_skips_the_shuffle", "a shuffle", "lane"});
  expect_in(
      report([&] { device::launch(shuffle_from_nowhere, {1}, 64, 0, nullptr, out.data()); }),
      {"shuffle from lane " + std::to_string(kWave) + " of a wave of " + std::to_string(kWave)});
  expect_in(report([&] { device::launch(two_barriers, {1}, 128, 0, nullptr, out.data()); }),
            {"two_barriers", "divergent: sync_block here", "threads wait in sync_block at"});
}

TEST_P(Simt, StaysUsableAfterEveryReport) {
  std::vector<int> out(128);
  for (int round = 0; round < 20; ++round) {
    simt::options().os_threads = 1 + round % 2;
    EXPECT_NE(
        report([&] { device::launch(barrier_against_shuffle, {5}, 128, 0, nullptr, out.data()); }),
        "");
    EXPECT_NE(report([&] { device::launch(index_outside, {2}, 64, 0, nullptr, 99); }), "");
    std::vector<int> fine(2 * 64, -1);
    device::launch(indices, {2}, 64, 0, nullptr, fine.data());
    for (size_t i = 0; i < fine.size(); ++i) ASSERT_EQ(fine[i] % 1000, static_cast<int>(i % 64));
  }
}

DEVICE_KERNEL(64) throws() {
  if (device::thread() == 9) throw std::runtime_error("nine");
  device::sync_block();
}

TEST_P(Simt, ReportsAnExceptionOfTheKernel) {
  expect_in(report([&] { device::launch(throws, {1}, 64, 0, nullptr); }),
            {"throws, block (0, 0, 0), thread 9", "nine"});
}

struct Counted {
  explicit Counted(int* count) : count(count) { device::atomic_add(count, 1); }
  ~Counted() { device::atomic_add(count, -1); }
  int* count;
};
DEVICE_KERNEL(64) holds_something(int* count) {
  const Counted counted(count);
  if (device::thread() == 9) return;
  device::sync_block();
}

TEST_P(Simt, UnwindsTheLanesOfAFailedBlock) {
  int count = 0;
  EXPECT_NE(report([&] { device::launch(holds_something, {1}, 64, 0, nullptr, &count); }), "");
  EXPECT_EQ(count, 0);
}

enum class CopyFault { none, target, source, not_shared, never_waited, never_committed };
DEVICE_KERNEL(64) copies(float* out, const float* in, CopyFault fault) {
  DEVICE_SHARED(float, s, 4 * 64 + 4);
  const int t = device::thread();
  device::copy_async16(
      fault == CopyFault::not_shared ? out + 4 * t : &s[4 * t + (fault == CopyFault::target)],
      in + 4 * t + (fault == CopyFault::source), t % 2 == 0);
  if (fault == CopyFault::never_committed) return;
  device::copy_async_commit();
  if (fault == CopyFault::never_waited) return;
  const float before = s[4 * t];
  device::copy_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[4 * t + i] = s[4 * t + i];
  if (!device::isnan(before)) out[4 * t] = -1;
}

TEST_P(Simt, AnAsynchronousCopyIsNanUntilTheWaitAndZeroWhereNotValid) {
  alignas(16) float in[4 * 64 + 4], out[4 * 64];
  std::iota(std::begin(in), std::end(in), 1.0f);
  device::launch(copies, {1}, 64, 0, nullptr, out, in, CopyFault::none);
  for (int i = 0; i < 4 * 64; ++i) ASSERT_EQ(out[i], i / 4 % 2 == 0 ? in[i] : 0) << i;
}

TEST_P(Simt, ReportsMisuseOfAsynchronousCopies) {
  alignas(16) float in[4 * 64 + 4] = {}, out[4 * 64] = {};
  const auto with = [&](CopyFault fault) {
    return report([&] { device::launch(copies, {1}, 64, 0, nullptr, out, in, fault); });
  };
  expect_in(with(CopyFault::target),
            {"copies, block", "copy_async16: the target is not aligned to 16 bytes"});
  expect_in(with(CopyFault::source), {"copy_async16: the source is not aligned to 16 bytes"});
  expect_in(with(CopyFault::not_shared), {"copy_async16: the target is not in shared memory"});
  expect_in(with(CopyFault::never_waited),
            {"1 asynchronous copies that no copy_async_wait covered"});
  expect_in(with(CopyFault::never_committed),
            {"1 asynchronous copies that no copy_async_wait covered"});
}

DEVICE_KERNEL(64) pipeline(float* out, const float* in, int steps) {
  DEVICE_SHARED(float, s, 3 * 4 * 64);
  const int t = device::thread();
  const auto fetch = [&](int step) {
    const bool valid = step < steps;
    device::copy_async16(&s[(step % 3 * 64 + t) * 4], valid ? in + (step * 64 + t) * 4 : nullptr,
                         valid);
    device::copy_async_commit();
  };
  fetch(0);
  fetch(1);
  float sum = 0;
  for (int step = 0; step < steps; ++step) {
    fetch(step + 2);
    device::copy_async_wait<2>();
    device::sync_block();
    sum += s[(step % 3 * 64 + 63 - t) * 4];
    device::sync_block();
  }
  device::copy_async_wait<0>();
  out[t] = sum;
}

TEST_P(Simt, RunsAPipelineOfAsynchronousCopies) {
  constexpr int kSteps = 7;
  std::vector<float> in(kSteps * 64 * 4), out(64);
  std::iota(in.begin(), in.end(), 0.0f);
  device::launch(pipeline, {1}, 64, 0, nullptr, out.data(), static_cast<const float*>(in.data()),
                 kSteps);
  for (int t = 0; t < 64; ++t) {
    float want = 0;
    for (int s = 0; s < kSteps; ++s) want += in[(s * 64 + 63 - t) * 4];
    ASSERT_EQ(out[t], want);
  }
}

DEVICE_KERNEL(64) fragment_outside(float* out) {
  device::Mma<device::bf16>::C c;
  out[device::thread()] = c.get(device::thread());
}

TEST_P(Simt, ReportsAFragmentElementThatDoesNotExist) {
  std::vector<float> out(64);
  expect_in(report([&] { device::launch(fragment_outside, {1}, 64, 0, nullptr, out.data()); }),
            {"of a fragment of 4"});
}

namespace inner {
template <class T>
DEVICE_KERNEL(64)
named(T) {
  if (device::thread() == 0) device::sync_block();
}
}  // namespace inner

TEST(SimtReport, NamesTheKernelAsTheSourceHasIt) {
  expect_in(report([&] { device::launch(inner::named<float>, {1}, 64, 0, nullptr, 1.0f); }),
            {"simt: inner::named<float>, block (0, 0, 0)"});
}

}  // namespace
