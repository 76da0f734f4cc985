// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/fill.h"
#include "harness/generate/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace harness {
namespace {

TEST(Philox, GivesTheAuthorsKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, HasFrozenBitsPerSeedStreamAndElement) {
  // A changed number here changes every generated case: old seeds in reports would no longer say
  // what they said.
  const Random q(1, "q");
  EXPECT_EQ(q.bits(0), Random(1, "q").bits(0));
  EXPECT_NE(q.bits(0), q.bits(1));
  EXPECT_NE(q.bits(0), Random(2, "q").bits(0));
  EXPECT_NE(q.bits(0), Random(1, "k_cache").bits(0));
  EXPECT_NE(q.bits(0), q.bits(uint64_t{1} << 32));
  EXPECT_NE(q.stream("a").bits(0), q.stream("b").bits(0));
  EXPECT_EQ(q.bits(0), 4284052420609421828u);
  EXPECT_EQ(q.bits(uint64_t{1} << 40), 7591395798626531757u);
  EXPECT_EQ(q.normal(7), -0.39493611709795495);
  EXPECT_EQ(q.below(3, 1000), 166);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  const Random r(5, "normal");
  double sum = 0, squares = 0, largest = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = r.normal(uint64_t(i));
    sum += x;
    squares += x * x;
    largest = std::max(largest, std::fabs(x));
  }
  EXPECT_LT(std::fabs(sum / n), 5 / std::sqrt(double(n)));  // five standard errors
  EXPECT_LT(std::fabs(squares / n - 1), 5 * std::sqrt(2.0 / n));
  EXPECT_LT(largest, 4.9);
  EXPECT_GT(largest, 3.5);
}

TEST(Random, UniformAndBelowStayInRangeAndReachAllOfIt) {
  const Random r(6, "uniform");
  std::set<int64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(r.uniform(i), 0.0);
    EXPECT_LT(r.uniform(i), 1.0);
    seen.insert(r.below(i, 7));
  }
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(r.below(0, 1), 0);
  EXPECT_THROW(r.below(0, 0), std::invalid_argument);
}

TEST(Random, ShuffleIsAPermutation) {
  auto order = Random(7, "pages").shuffle(257);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 257; ++i) EXPECT_EQ(order[size_t(i)], i);
  EXPECT_TRUE(Random(7, "pages").shuffle(0).empty());
}

TEST(Random, DistinctAreDistinctAscendingAndInRange) {
  const Random r(8, "distinct");
  const auto some = r.distinct(100, 1'000'000'000'000);
  EXPECT_EQ(some.size(), 100u);
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
  EXPECT_EQ(std::set<int64_t>(some.begin(), some.end()).size(), 100u);
  const auto all = r.distinct(50, 50);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(all[size_t(i)], i);
  EXPECT_THROW(r.distinct(3, 2), std::invalid_argument);
}

}  // namespace
// The host's vector instructions, its scalar tail and Philox as it is written down, across a carry of the counter.
TEST(Random, ManyNormalsAreTheNumbersOneByOne) {
  const Random r(77, "many");
  for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 9}) {
    std::vector<int32_t> sums(53);
    r.normal_sums(first, int64_t(sums.size()), sums.data());
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_EQ(Random::normal_of(sums[i]), r.normal(first + i)) << first << " + " << i;
  }
  EXPECT_EQ(Random::normal_of(0), -Random::normal_of(Random::kNormalSums - 1));
}

// Above some two million elements the codes come from a table.
TEST(Random, ATableOfCodesIsWhatEncodingGives) {
  for (const tk_dtype dtype : {TK_BF16, TK_F16}) {
    const NormalElement table(dtype, 0.37, -0.1, int64_t{1} << 40), each(dtype, 0.37, -0.1, 1);
    for (int32_t sum = 0; sum < Random::kNormalSums; sum += 7) {
      uint16_t a = 0, b = 1;
      table.put(sum, reinterpret_cast<std::byte*>(&a));
      each.put(sum, reinterpret_cast<std::byte*>(&b));
      ASSERT_EQ(a, b) << sum;
    }
  }
}

}  // namespace harness
