// SPDX-License-Identifier: Apache-2.0
// Which samples count: outliers are told, throttled ones are thrown away.
#include "harness/measure/sampling.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "harness/measure/kernel_timer.h"
#include "measured.h"

namespace {

using harness::SamplingRules;

TEST(Sampling, OutliersAreCountedAndStayIn) {
  std::vector<double> samples(99, 10);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] += 0.01 * static_cast<double>(i % 3);
  samples.push_back(30);
  const auto s = harness::summarize(samples);
  EXPECT_EQ(s.outliers, 1);
  EXPECT_EQ(s.samples, 100);
}

TEST(Sampling, AThrottledIntervalIsDiscardedAndTheOthersCount) {
  int taken = 0, asked = 0;
  SamplingRules rules;
  rules.min_time_s = 0;
  rules.poll_s = 0;  // after every sample
  rules.throttled = [&] { return ++asked <= 4; };
  const auto s = harness::take_samples({[&] { return ++taken <= 4 ? 100.0 : 5.0; }}, rules);
  EXPECT_EQ(s[0].discarded, 4);
  EXPECT_FALSE(s[0].all_throttled);
  EXPECT_EQ(s[0].samples, rules.min_samples);
  EXPECT_EQ(s[0].q3, 5);
}

TEST(Sampling, TheLastIntervalIsAskedForToo) {
  int asked = 0;
  SamplingRules rules;
  rules.min_time_s = 0;
  rules.poll_s = 1e9;
  rules.throttled = [&] { return ++asked == 1; };  // as the first ten samples end
  const auto s = harness::take_samples({[] { return 5.0; }}, rules);
  EXPECT_EQ(s[0].discarded, 10);
  EXPECT_EQ(s[0].samples, 10);
}

TEST(Sampling, ACardThatStaysThrottledKeepsItsRowAndSaysSo) {
  SamplingRules rules;
  rules.min_time_s = rules.max_time_s = 1e-3;
  rules.poll_s = 0;
  rules.throttled = [] { return true; };
  const auto s = harness::take_samples({[] { return 7.0; }}, rules);
  EXPECT_TRUE(s[0].all_throttled);
  EXPECT_GT(s[0].discarded, 0);
  EXPECT_EQ(s[0].median, 7);
}

// B38: derived from the L2 of the device, and outside the timed interval.
TEST(Flush, IsTwiceTheL2AndAtLeast256MB) {
  const measure_test::Measured small;
  EXPECT_EQ(harness::flush_bytes(small.device()), 256'000'000u);
  ::setenv("MEASURED_L2", "257000000", 1);
  const measure_test::Measured large;
  ::unsetenv("MEASURED_L2");
  EXPECT_EQ(harness::flush_bytes(large.device()), 514'000'000u);
}

TEST(Flush, IsNotTimed) {
  const measure_test::Measured measured;
  const tk_op op{sizeof(tk_op), 0,       "x",
                 "y",           nullptr, [](const tk_call*) { return tk_status{TK_OK}; }};
  tk_call call{};
  harness::KernelTimer timer(measured.device(), op, {&call},
                             {harness::Cache::cold, harness::Launch::stream});
  EXPECT_EQ(timer.flushed(), 256'000'000u);
  EXPECT_EQ(timer.sample(), 0);
}

// B38: the L2 of this device has 1 KiB.
TEST(Rotation, TakesCopiesUntilTwiceTheL2LiesBetweenTwoUses) {
  const measure_test::Measured measured;
  EXPECT_EQ(harness::rotation_copies(measured.device(), 4096), 2);
  EXPECT_EQ(harness::rotation_copies(measured.device(), 1024), 3);
  EXPECT_EQ(harness::rotation_copies(measured.device(), 100), 22);
  EXPECT_EQ(harness::rotation_copies(measured.device(), 10), 0);
}

TEST(Rotation, TheCopiesTakeTurns) {
  static std::string order;
  const measure_test::Measured measured;
  const tk_op op{sizeof(tk_op), 0, "x", "y", nullptr, [](const tk_call* call) {
                   order += static_cast<char>('a' + call->tensor_count);
                   return tk_status{TK_OK};
                 }};
  tk_call first{}, second{};
  second.tensor_count = 1;
  harness::KernelTimer timer(measured.device(), op, {&first, &second},
                             {harness::Cache::rotate, harness::Launch::stream});
  for (int i = 0; i < 3; ++i) timer.sample();
  EXPECT_EQ(order, "abbaab");  // the one before, then the timed one
}

}  // namespace
