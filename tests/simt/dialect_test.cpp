// SPDX-License-Identifier: Apache-2.0
// Each device function alone against its formula, with both widths and in every order.
// (tests/conformance holds the same functions against a GPU.)
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "device/device.h"
#include "device/launch.h"

namespace {

using device::kWave;
constexpr int kThreads = 256;

class Dialect : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ASSERT_TRUE(simt::parse_order(GetParam(), simt::options())); }
  void TearDown() override { simt::options() = {}; }
};
INSTANTIATE_TEST_SUITE_P(Orders, Dialect, testing::Values("forward", "reverse", "seed:5"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, ':');
                           return name;
                         });

template <class T>
DEVICE_KERNEL(kThreads)
shuffles(T* out) {
  const T v = static_cast<T>(device::thread() * 3 + 1);
  const T results[] = {device::shuffle(v, (device::lane() * 7 + 3) % kWave),
                       device::shuffle_xor(v, 5), device::shuffle_up(v, 3),
                       device::shuffle_down(v, 3), device::shuffle_xor(v, kWave / 2)};
  for (int i = 0; i < 5; ++i) out[device::thread() * 5 + i] = results[i];
}

template <class T>
void shuffles_are_right() {
  std::vector<T> out(kThreads * 5);
  device::launch(shuffles<T>, {1}, kThreads, 0, nullptr, out.data());
  for (int t = 0; t < kThreads; ++t) {
    const int l = t % kWave, first = t - l;
    const int from[] = {(l * 7 + 3) % kWave, l ^ 5, l < 3 ? l : l - 3, l + 3 < kWave ? l + 3 : l,
                        l ^ (kWave / 2)};
    for (int i = 0; i < 5; ++i)
      ASSERT_EQ(out[t * 5 + i], static_cast<T>((first + from[i]) * 3 + 1))
          << "thread " << t << " shuffle " << i;
  }
}

TEST_P(Dialect, ShufflesMoveFourAndEightByteValues) {
  shuffles_are_right<int>();
  shuffles_are_right<float>();
  shuffles_are_right<uint64_t>();
  shuffles_are_right<double>();
}

DEVICE_KERNEL(kThreads) votes(int* out) {
  const bool b = device::thread() % 3 == 0;
  const device::LaneMask mask = device::ballot(b);
  const int results[] = {device::popcount(mask),
                         device::first_lane(mask),
                         device::popcount(mask & device::lanes_below()),
                         device::any(device::thread() == 40),
                         device::all(device::thread() != 40),
                         device::first_lane(device::ballot(false))};
  for (int i = 0; i < 6; ++i) out[device::thread() * 6 + i] = results[i];
}

TEST_P(Dialect, VotesSeeTheLanesOfTheWave) {
  std::vector<int> out(kThreads * 6);
  device::launch(votes, {1}, kThreads, 0, nullptr, out.data());
  for (int t = 0; t < kThreads; ++t) {
    const int first = t / kWave * kWave;
    int count = 0, lowest = -1, below = 0;
    for (int l = 0; l < kWave; ++l)
      if ((first + l) % 3 == 0) {
        if (lowest < 0) lowest = l;
        ++count;
        below += first + l < t;
      }
    const bool has_40 = first <= 40 && 40 < first + kWave;
    const int want[] = {count, lowest, below, has_40, !has_40, -1};
    for (int i = 0; i < 6; ++i)
      ASSERT_EQ(out[t * 6 + i], want[i]) << "thread " << t << " vote " << i;
  }
}

DEVICE_KERNEL(kThreads) reductions(const float* in, float* out, int* out_int) {
  DEVICE_SHARED(float, floats, 32);
  DEVICE_SHARED(int, ints, 32);
  const float x = in[device::thread()];
  const float results[] = {device::wave_sum(x), device::wave_max(x), device::wave_min(x),
                           device::block_sum(x, floats), device::block_max(x, floats)};
  for (int i = 0; i < 5; ++i) out[device::thread() * 5 + i] = results[i];
  const int n =
      device::block_sum(device::thread(), ints);  // the scratch is free again after each call
  out_int[device::thread()] =
      n + device::block_max(device::thread(), ints) + device::block_sum(1, ints);
}

TEST_P(Dialect, ReductionsGiveEveryLaneTheResult) {
  std::vector<float> in(kThreads), out(kThreads * 5);
  std::vector<int> out_int(kThreads);
  std::mt19937 random(3);
  for (float& x : in)
    x = static_cast<float>(static_cast<int>(random() % 2001) - 1000);  // sums are exact
  in[7] = device::nan();
  device::launch(reductions, {1}, kThreads, 0, nullptr, static_cast<const float*>(in.data()),
                 out.data(), out_int.data());
  float block_max = -INFINITY;
  for (float x : in) block_max = std::fmax(block_max, x);
  for (int t = 0; t < kThreads; ++t) {
    float sum = 0, max = NAN, min = NAN;
    for (int l = 0; l < kWave; ++l) {
      const float x = in[t / kWave * kWave + l];
      sum += x, max = std::fmax(max, x), min = std::fmin(min, x);
    }
    if (t / kWave == 7 / kWave)
      ASSERT_TRUE(std::isnan(out[t * 5]));
    else
      ASSERT_EQ(out[t * 5], sum);
    ASSERT_EQ(out[t * 5 + 1], max);
    ASSERT_EQ(out[t * 5 + 2], min);
    ASSERT_TRUE(std::isnan(out[t * 5 + 3]));
    ASSERT_EQ(out[t * 5 + 4], block_max);
    ASSERT_EQ(out_int[t], kThreads * (kThreads - 1) / 2 + (kThreads - 1) + kThreads);
  }
}

DEVICE_KERNEL(kThreads) sum_of_lanes(int* out) {
  out[device::thread()] = device::wave_sum(device::lane());
}

TEST_P(Dialect, AWaveSumHasAllLanesOfTheWave) {  // B37: 2016 with 64 lanes, 496 with 32
  std::vector<int> out(kThreads);
  device::launch(sum_of_lanes, {1}, kThreads, 0, nullptr, out.data());
  for (const int sum : out) ASSERT_EQ(sum, kWave == 64 ? 2016 : 496);
}

DEVICE_KERNEL(kThreads) sum_two_ways(const float* in, float* out) {
  const float x = in[device::thread()];
  float by_shuffles = x;
  for (int mask = kWave / 2; mask > 0; mask /= 2)
    by_shuffles += device::shuffle_xor(by_shuffles, mask);
  out[device::thread()] = device::wave_sum(x);
  out[kThreads + device::thread()] = by_shuffles;
}

TEST_P(Dialect, AWaveSumHasTheBitsOfASumByShuffles) {
  std::vector<float> in(kThreads), out(2 * kThreads);
  std::mt19937 random(9);
  for (float& x : in) x = std::uniform_real_distribution<float>(-1, 1)(random);
  device::launch(sum_two_ways, {1}, kThreads, 0, nullptr, static_cast<const float*>(in.data()),
                 out.data());
  for (int t = 0; t < kThreads; ++t) ASSERT_EQ(out[t], out[kThreads + t]) << t;
}

struct Counters {
  int32_t sum, largest;
  uint32_t smallest, bits, exchanged, claimed;
  uint64_t wide;
  float real;
};
DEVICE_KERNEL(kThreads) atomics(Counters* c, uint32_t* olds) {
  const int t = device::thread();
  const int i = t - 100;
  device::atomic_add(&c->sum, i);
  device::atomic_max(&c->largest, i);
  device::atomic_min(&c->smallest, static_cast<uint32_t>(t + 5));
  device::atomic_or(&c->bits, 1u << (t % 32));
  olds[t] = device::atomic_exchange(&c->exchanged, t + 1);
  device::atomic_cas(&c->claimed, 0, t + 1);
  device::atomic_add(&c->wide, uint64_t{1} << 33);
  device::atomic_add(&c->real, 0.5f);
}

TEST_P(Dialect, AtomicsLoseNothingAndReturnTheOldValue) {
  for (int os_threads : {1, 2}) {
    simt::options().os_threads = os_threads;
    Counters c{0, -1000, 1000, 0, 0, 0, 0, 0};
    std::vector<uint32_t> olds(kThreads);
    device::launch(atomics, {1}, kThreads, 0, nullptr, &c, olds.data());
    EXPECT_EQ(c.sum, kThreads * (kThreads - 1) / 2 - 100 * kThreads);
    EXPECT_EQ(c.largest, kThreads - 101);
    EXPECT_EQ(c.smallest, 5u);
    EXPECT_EQ(c.bits, ~0u);
    EXPECT_GT(c.claimed, 0u);
    EXPECT_EQ(c.wide, static_cast<uint64_t>(kThreads) << 33);
    EXPECT_EQ(c.real, kThreads * 0.5f);
    olds.push_back(c.exchanged);  // a chain: every value once
    EXPECT_EQ(std::set<uint32_t>(olds.begin(), olds.end()).size(),
              static_cast<size_t>(kThreads + 1));
  }
}

template <class T>
DEVICE_KERNEL(64)
product(const uint16_t* in_a, const uint16_t* in_b, float* inout_c, int* seen) {
  using M = device::Mma<T>;
  typename M::A a;
  typename M::B b;
  typename M::C c;
  for (int e = 0; e < a.kSize; ++e) {
    a.set(e, in_a[M::a_row(e) * M::K + M::a_k(e)]);
    device::atomic_add(&seen[M::a_row(e) * M::K + M::a_k(e)], 1);
  }
  for (int e = 0; e < b.kSize; ++e) {
    b.set(e, in_b[M::b_k(e) * M::N + M::b_col(e)]);
    device::atomic_add(&seen[256 + M::b_k(e) * M::N + M::b_col(e)], 1);
  }
  for (int e = 0; e < c.kSize; ++e) {
    c.set(e, inout_c[M::c_row(e) * M::N + M::c_col(e)]);
    device::atomic_add(&seen[512 + M::c_row(e) * M::N + M::c_col(e)], 1);
  }
  M::multiply(c, a, b);
  for (int e = 0; e < c.kSize; ++e) inout_c[M::c_row(e) * M::N + M::c_col(e)] = c.get(e);
}

// Products of random multiples of `step` below 1 in magnitude; with step 1, of integers up to 8.
template <class T>
void products_are_right(double step) {
  using M = device::Mma<T>;
  std::mt19937 random(11);
  const int most = step == 1 ? 8 : static_cast<int>(1 / step) - 1;
  const auto draw = [&] {
    return static_cast<float>(step * (static_cast<int>(random() % (2 * most + 1)) - most));
  };
  std::vector<float> a(M::M * M::K), b(M::K * M::N), c(M::M * M::N);
  std::vector<uint16_t> a_bits, b_bits;
  for (float& x : a) a_bits.push_back(device::from_float<T>(x = draw()).bits);
  for (float& x : b) b_bits.push_back(device::from_float<T>(x = draw()).bits);
  for (float& x : c) x = draw();
  std::vector<float> d = c;
  std::vector<int> seen(768);
  device::launch(product<T>, {1}, kWave, 0, nullptr, static_cast<const uint16_t*>(a_bits.data()),
                 static_cast<const uint16_t*>(b_bits.data()), d.data(), seen.data());
  for (int i = 0; i < M::M * M::K; ++i) ASSERT_EQ(seen[i], 1) << "A " << i;
  for (int i = 0; i < M::K * M::N; ++i) ASSERT_EQ(seen[256 + i], 1) << "B " << i;
  for (int i = 0; i < M::M * M::N; ++i) ASSERT_EQ(seen[512 + i], 1) << "C " << i;
  for (int i = 0; i < M::M; ++i)
    for (int j = 0; j < M::N; ++j) {
      double sum = c[i * M::N + j], size = std::fabs(sum);
      for (int k = 0; k < M::K; ++k) {
        const double p = static_cast<double>(a[i * M::K + k]) * b[k * M::N + j];
        sum += p, size += std::fabs(p);
      }
      // Products are exact in fp32; each of the K additions rounds by at most half a unit of what
      // is summed so far.
      const double bound = step == 1 ? 0 : M::K * std::ldexp(size, -24);
      ASSERT_LE(std::fabs(d[i * M::N + j] - sum), bound) << i << " " << j;
    }
}

TEST_P(Dialect, MatrixProductsAreRightAndFragmentsCoverEveryElementOnce) {
  products_are_right<device::bf16>(1);
  products_are_right<device::f16>(1);
  products_are_right<device::bf16>(1.0 / 128);
  products_are_right<device::f16>(1.0 / 1024);
}

DEVICE_KERNEL(64) coordinates(int* out) {
  using M = device::Mma<device::bf16>;
  int* o = out + device::lane() * 24;
  for (int e = 0; e < M::A::kSize; ++e) *o++ = M::a_row(e) * 16 + M::a_k(e);
  o = out + device::lane() * 24 + 8;
  for (int e = 0; e < M::B::kSize; ++e) *o++ = M::b_k(e) * 16 + M::b_col(e);
  o = out + device::lane() * 24 + 16;
  for (int e = 0; e < M::C::kSize; ++e) *o++ = M::c_row(e) * 16 + M::c_col(e);
}

// Spot values from the vendors' tables: NVIDIA's of m16n8k16 (PTX ISA, "Matrix fragments for
// mma.m16n8k16"), AMD's of v_mfma_f32_16x16x16 (lane i holds row or column i mod 16, k or row 4 *
// (i / 16) + element).
TEST(DialectLayout, FragmentsLieAsInHardware) {
  std::vector<int> out(64 * 24);
  device::launch(coordinates, {1}, kWave, 0, nullptr, out.data());
  const int* lane6 = out.data() + 6 * 24;
  const int* last = out.data() + (kWave - 1) * 24;
  if (kWave == 32) {
    EXPECT_EQ(std::vector<int>(lane6, lane6 + 8),
              (std::vector<int>{20, 21, 148, 149, 28, 29, 156, 157}));  // row 1 or 9
    EXPECT_EQ(std::vector<int>(lane6 + 8, lane6 + 12),
              (std::vector<int>{4 * 16 + 1, 5 * 16 + 1, 12 * 16 + 1, 13 * 16 + 1}));
    EXPECT_EQ(std::vector<int>(lane6 + 16, lane6 + 20),
              (std::vector<int>{16 + 4, 16 + 5, 9 * 16 + 4, 9 * 16 + 5}));
    EXPECT_EQ(std::vector<int>(last + 16, last + 20),
              (std::vector<int>{7 * 16 + 6, 7 * 16 + 7, 15 * 16 + 6, 15 * 16 + 7}));
  } else {
    EXPECT_EQ(std::vector<int>(lane6, lane6 + 4),
              (std::vector<int>{96, 97, 98, 99}));  // row 6, k 0 to 3
    EXPECT_EQ(std::vector<int>(lane6 + 8, lane6 + 12),
              (std::vector<int>{6, 16 + 6, 32 + 6, 48 + 6}));
    EXPECT_EQ(std::vector<int>(last + 8, last + 12),
              (std::vector<int>{207, 223, 239, 255}));  // k 12 to 15, column 15
    EXPECT_EQ(std::vector<int>(last + 16, last + 20), (std::vector<int>{207, 223, 239, 255}));
  }
}

DEVICE_KERNEL(64) special_products(const uint16_t* values, float* out) {
  using M = device::Mma<device::f16>;
  M::A a;
  M::B b;
  M::C c;
  for (int e = 0; e < M::A::kSize; ++e)
    a.set(e, M::a_row(e) == M::a_k(e) ? values[M::a_row(e)] : 0);
  for (int e = 0; e < M::B::kSize; ++e) b.set(e, M::b_col(e) == 0 ? 0x3c00 : 0);
  M::multiply(c, a, b);
  for (int e = 0; e < M::C::kSize; ++e)
    if (M::c_col(e) == 0) out[M::c_row(e)] = c.get(e);
}

TEST(DialectLayout, MatrixProductsTakeDenormalsInfinityAndNanOfF16) {
  const uint16_t values[16] = {0x0001, 0x03ff, 0x8001, 0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x0400};
  float out[16];
  device::launch(special_products, {1}, kWave, 0, nullptr, &values[0], &out[0]);
  for (int i = 0; i < 8; ++i) {
    const float want = device::to_float(device::f16{values[i]});
    EXPECT_TRUE(out[i] == want || (std::isnan(out[i]) && std::isnan(want))) << i << ": " << out[i];
  }
}

// One product beside a sum.
DEVICE_KERNEL(64) product_beside(uint16_t left, uint16_t right, float sum, float* out) {
  using M = device::Mma<device::f16>;
  M::A a;
  M::B b;
  M::C c;
  for (int e = 0; e < M::A::kSize; ++e) a.set(e, M::a_row(e) == 0 && M::a_k(e) == 0 ? left : 0);
  for (int e = 0; e < M::B::kSize; ++e) b.set(e, M::b_k(e) == 0 && M::b_col(e) == 0 ? right : 0);
  for (int e = 0; e < M::C::kSize; ++e) c.set(e, M::c_row(e) == 0 && M::c_col(e) == 0 ? sum : 0);
  M::multiply(c, a, b);
  for (int e = 0; e < M::C::kSize; ++e)
    if (M::c_row(e) == 0 && M::c_col(e) == 0) *out = c.get(e);
}

// Measured on an H200: a denormal factor counts as 2^-14, and what is added beside it is cut so.
TEST(DialectLayout, MatrixProductsOf32LanesCutBesideADenormal) {
  const float sum = 15 * 0x1p-24f + 15 * 0x1p-43f;
  const auto beside = [&](uint16_t left, uint16_t right) {
    float out = 0;
    device::launch(product_beside, {1}, kWave, 0, nullptr, left, right, sum, &out);
    return out;
  };
  EXPECT_EQ(beside(0x1400, 0x0400), 0x1p-24f + sum);  // 2^-10 * 2^-14
  EXPECT_EQ(beside(0x3c00, 0x0001), kWave == 32 ? 0x1p-20f : 0x1p-24f + sum);
  EXPECT_EQ(beside(0x0000, 0x0001), sum);
}

TEST(DialectMath, MaxAndMinPassOverNan) {
  EXPECT_EQ(device::max(device::nan(), 1.0f), 1.0f);
  EXPECT_EQ(device::max(1.0f, device::nan()), 1.0f);
  EXPECT_EQ(device::min(device::nan(), 1.0f), 1.0f);
  EXPECT_EQ(device::max(-3, 2), 2);
  EXPECT_EQ(device::min(int64_t{-3}, int64_t{2}), -3);
  EXPECT_EQ(device::divide(1.0f, 3.0f), 1.0f / 3.0f);
  EXPECT_EQ(device::exp2(-3.0f), 0.125f);
  EXPECT_EQ(device::exp2(-device::infinity()), 0.0f);
}

}  // namespace
