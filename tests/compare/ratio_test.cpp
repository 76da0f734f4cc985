// SPDX-License-Identifier: Apache-2.0
// What a pair of rows says.
#include <gtest/gtest.h>

#include "compare/files.h"
#include "harness/compare/comparison.h"
#include "harness/plugins/errors.h"

using harness::Change;
using test::file_of;
using test::timed;
using test::with;

namespace {

harness::Comparison compare(const std::vector<harness::Row>& a, const std::vector<harness::Row>& b,
                            const harness::ComparisonRules& rules = {}) {
  return harness::compare(harness::read_results(file_of("a.csv", a)),
                          harness::read_results(file_of("b.csv", b)), rules);
}

harness::Compared pair(const harness::Row& a, const harness::Row& b, double gate_pct = 0) {
  harness::ComparisonRules rules;
  rules.gate_pct = gate_pct;
  return compare({a}, {b}, rules).pairs.at(0);
}

TEST(Ratio, IsInsideItsIntervalAndSlowerMeansThatAllOfItIsAboveOne) {
  const auto c = pair(timed("a", 100, 1), timed("a", 110, 1));
  EXPECT_EQ(c.ratio.change, Change::slower);
  EXPECT_TRUE(c.regression);
  EXPECT_NEAR(c.ratio.ratio, 1.1, 1e-9);
  EXPECT_GT(c.ratio.lo, 1);
  EXPECT_LT(c.ratio.lo, c.ratio.ratio);
  EXPECT_GT(c.ratio.hi, c.ratio.ratio);
  EXPECT_EQ(pair(timed("a", 110, 1), timed("a", 100, 1)).ratio.change, Change::faster);
}

TEST(Ratio, SmallestVisibleSlowdownIsWhereSlowerBegins) {
  const double visible = pair(timed("a", 100, 2), timed("a", 100, 2)).ratio.visible_pct;
  const auto b = [&](double pct) {
    auto row = timed("a", 100 * (1 + pct / 100), 2);
    row.set("time_us_min", timed("a", 100, 2).at("time_us_min"));
    return row;
  };
  EXPECT_EQ(pair(timed("a", 100, 2), b(visible * 0.97)).ratio.change, Change::same);
  EXPECT_EQ(pair(timed("a", 100, 2), b(visible * 1.03)).ratio.change, Change::slower);
}

TEST(Ratio, TooNoisyToSeeWhatMattersIsUnclear) {
  const auto c = pair(timed("a", 100, 8), timed("a", 101, 8));
  EXPECT_EQ(c.ratio.change, Change::unclear);
  EXPECT_TRUE(test::has(c.ratio.reason, "a slowdown of 5 % matters"));
  // A wider gate asks for less, a narrower one for more.
  EXPECT_EQ(pair(timed("a", 100, 8), timed("a", 101, 8), 15).ratio.change, Change::same);
  EXPECT_EQ(pair(timed("a", 100, 2), timed("a", 100.5, 2), 1).ratio.change, Change::unclear);
}

TEST(Ratio, GateLetsASmallSlowdownPassButStillNamesIt) {
  const auto small = pair(timed("a", 100, 1), timed("a", 104, 1), 5);
  EXPECT_EQ(small.ratio.change, Change::slower);
  EXPECT_FALSE(small.regression);
  EXPECT_TRUE(pair(timed("a", 100, 1), timed("a", 107, 1), 5).regression);
}

TEST(Ratio, FewSamplesOrNoSpreadAreInsufficient) {
  for (const auto& b :
       {timed("a", 100, 1, 1), timed("a", 200, 1, 7), with(timed("a", 100, 1), "time_us_q3", {}),
        with(timed("a", 100, 1), "median_lo_us", {}), with(timed("a", 100, 1), "samples", {}),
        with(timed("a", 100, 1), "time_us_q1", 101.0)})
    for (const bool swapped : {false, true}) {
      const auto c = swapped ? pair(b, timed("a", 100, 1)) : pair(timed("a", 100, 1), b);
      EXPECT_EQ(c.ratio.change, Change::unclear);
      EXPECT_TRUE(test::has(c.ratio.reason, swapped ? "A: insufficient" : "B: insufficient"));
      EXPECT_EQ(c.ratio.lo, 0);
    }
}

TEST(Ratio, RowWithoutAnySpreadNeedsAnotherThatShowsTheTimersStep) {
  const auto still = with(timed("still", 10, 0), "time_us_min", 10.0);
  EXPECT_EQ(compare({still}, {still}).pairs.at(0).ratio.change, Change::unclear);
  auto moving = timed("moving", 10, 0);
  moving.set("time_us_min", 9.968);
  const auto c = compare({still, moving}, {still, moving});
  EXPECT_EQ(c.count(Change::same), 2);
  EXPECT_NEAR(c.pairs.at(0).ratio.visible_pct, 100 * (10.032 / 9.968 * 1.005 * 1.005 - 1), 1e-6);
}

TEST(Ratio, OneStepOfTheTimerIsNoSlowdown) {
  auto a = timed("a", 2, 0), b = timed("a", 2.032, 0);
  a.set("time_us_min", 1.968);
  b.set("time_us_min", 2.0);
  EXPECT_NE(pair(a, b).ratio.change, Change::slower);
}

TEST(Ratio, RepeatsDivideTheTimersStep) {
  auto row = with(timed("a", 10, 0), "repeats", int64_t{4});
  row.set("time_us_min", 9.992);
  EXPECT_NEAR(harness::read_results(file_of("r.csv", {row})).timer_step_us.value(), 0.032, 1e-9);
  EXPECT_NEAR(pair(row, row).ratio.visible_pct, 100 * (10.008 / 9.992 * 1.005 * 1.005 - 1), 1e-6);
}

TEST(Ratio, RowsThatAreNoResultAreUnclearWithTheirReason) {
  auto noisy = with(timed("a", 150, 1), "status", std::string("inconclusive"));
  noisy.set("reason", std::string("noise 9 %"));
  const auto c = pair(timed("a", 100, 1), noisy);
  EXPECT_EQ(c.ratio.change, Change::unclear);
  EXPECT_EQ(c.ratio.reason, "B: inconclusive: noise 9 %");
  EXPECT_EQ(pair(with(timed("a", 1, 1), "status", std::string("impossible")), timed("a", 100, 1))
                .ratio.change,
            Change::unclear);
}

TEST(Ratio, SeveralRunsOfACaseArePooled) {
  // Two runs 4 % apart say that a change of 3 % is nothing, however sure each is.
  const std::vector<harness::Row> a{timed("a", 100, 0.5), timed("a", 104, 0.5)};
  const auto c = compare(a, {timed("a", 103, 0.5)});
  ASSERT_EQ(c.pairs.size(), 1u);
  EXPECT_EQ(c.pairs[0].side_a.samples, 200);
  EXPECT_NEAR(c.pairs[0].side_a.median_us, 102, 1e-9);
  EXPECT_NE(c.pairs[0].ratio.change, Change::slower);
  EXPECT_EQ(compare({a[0]}, {timed("a", 103, 0.5)}).pairs[0].ratio.change, Change::slower);
}

TEST(Ratio, ThreeRunsShowThemselvesWhatOneRunIsAllowedFor) {
  const auto row = timed("a", 100, 1);
  EXPECT_NEAR(
      compare({row, row, row}, {row, row, row}).pairs.at(0).ratio.visible_pct,
      100 * ((1 + compare({row}, {row}).pairs.at(0).ratio.visible_pct / 100) / (1.005 * 1.005) - 1),
      1e-9);
}

// B40: a full baseline beside a partial run, a change within the spread and one beyond it.
TEST(Compare, B40PairsWhatBothHaveAndNamesTheRest) {
  const auto c = compare({timed("a", 100, 3, 30), timed("b", 100, 1, 30), timed("c", 100, 1, 30),
                          timed("d", 100, 1, 30)},
                         {timed("e", 100, 1, 30), timed("c", 110, 1, 30), timed("a", 102, 3, 30)});
  ASSERT_EQ(c.pairs.size(), 2u);
  EXPECT_EQ(c.pairs[0].b.case_id, "qsa.attend/c");
  EXPECT_EQ(c.pairs[0].ratio.change, Change::slower);
  EXPECT_EQ(c.pairs[1].b.case_id, "qsa.attend/a");
  EXPECT_EQ(c.pairs[1].ratio.change, Change::same);
  std::vector<std::string> only;
  for (const auto& left : c.only) only.push_back(left.side + " " + left.timing.case_id);
  EXPECT_EQ(only, (std::vector<std::string>{"A qsa.attend/b", "A qsa.attend/d", "B qsa.attend/e"}));
}

TEST(Compare, ConditionsAndImplementationsAreCasesOfTheirOwn) {
  const auto warm = with(timed("a", 50, 1), "l2", std::string("warm"));
  const auto stream = with(timed("a", 70, 1), "launch", std::string("stream"));
  const auto mine = with(timed("a", 60, 1), "impl", std::string("mine"));
  const auto c =
      compare({timed("a", 100, 1), warm, stream, mine}, {mine, stream, warm, timed("a", 100, 1)});
  EXPECT_EQ(c.count(Change::same), 4);
  EXPECT_TRUE(c.only.empty());
}

TEST(Compare, ImplementationsOfTwoNamesArePairedWhereAsked) {
  const auto mine = with(timed("a", 60, 1), "impl", std::string("mine"));
  harness::ComparisonRules rules;
  rules.impl_a = "portable";
  rules.impl_b = "mine";
  const auto c = compare({timed("a", 100, 1), mine}, {timed("a", 100, 1), mine}, rules);
  ASSERT_EQ(c.pairs.size(), 1u);
  EXPECT_EQ(c.pairs[0].ratio.change, Change::faster);
  EXPECT_EQ(c.pairs[0].a.impl, "portable");
}

TEST(Compare, FailedRowsAreListedAndTheirCasesAreNotMissing) {
  auto failed = with(timed("a", 1, 1), "status", std::string("fail"));
  for (const auto column : {"time_us_median", "time_us_q1", "time_us_q3", "l2", "launch"})
    failed.set(column, {});
  failed.set("reason", std::string("wrong"));
  const auto c = compare({timed("a", 100, 1)}, {failed});
  EXPECT_TRUE(c.pairs.empty());
  EXPECT_TRUE(c.only.empty());
  ASSERT_EQ(c.failures.size(), 1u);
  EXPECT_EQ(c.failures[0].side, "B");
}

TEST(Compare, OtherDeviceIsRefusedUnlessMachinesAreCompared) {
  const auto other = with(timed("a", 50, 1), "device", std::string("NVIDIA A100"));
  EXPECT_THROW(compare({timed("a", 100, 1)}, {other}), harness::BadRequest);
  harness::ComparisonRules rules;
  rules.across_devices = true;
  const auto c = compare({timed("a", 100, 1)}, {other}, rules);
  ASSERT_EQ(c.pairs.size(), 1u);
  EXPECT_NEAR(c.pairs[0].ratio.ratio, 0.5, 1e-9);
  // Rows of two devices would be pooled.
  EXPECT_THROW(compare({timed("a", 100, 1), other}, {other}, rules), harness::BadRequest);
}

}  // namespace
