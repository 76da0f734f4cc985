// SPDX-License-Identifier: Apache-2.0
// What a pair of rows says.
#include <gtest/gtest.h>

#include <cmath>

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

harness::Row of_run(harness::Row row, const std::string& run_id) {
  row.set("run_id", run_id);
  return row;
}

std::vector<harness::Row> three_runs(const harness::Row& row) {
  return {of_run(row, "r1"), of_run(row, "r2"), of_run(row, "r3")};
}

TEST(Ratio, ThreeRunsShowThemselvesWhatOneRunIsAllowedFor) {
  const auto row = timed("a", 100, 1);
  EXPECT_NEAR(
      compare(three_runs(row), three_runs(row)).pairs.at(0).ratio.visible_pct,
      100 * ((1 + compare({row}, {row}).pairs.at(0).ratio.visible_pct / 100) / (1.005 * 1.005) - 1),
      1e-9);
}

// A file that was appended to itself, or a case that one run timed thrice, shows no other run.
TEST(Ratio, RowsOfOneRunAreOneRunHoweverMany) {
  const auto a = of_run(timed("a", 100, 0.5), "r1"), b = of_run(timed("a", 101, 0.5), "r2");
  ASSERT_EQ(compare({a}, {b}).pairs.at(0).ratio.change, Change::same);
  const auto twice = compare({a, a, a}, {b, b, b}).pairs.at(0);
  EXPECT_EQ(twice.ratio.change, Change::same);
  EXPECT_EQ(twice.side_a.samples, 100);
  const auto again = with(b, "time_us_median", 101.001),
             once_more = with(b, "samples", int64_t{99});
  EXPECT_EQ(compare({a}, {b, again, once_more}).pairs.at(0).ratio.change, Change::same);
  EXPECT_EQ(compare(three_runs(a), three_runs(b)).pairs.at(0).ratio.change, Change::slower);
}

TEST(Ratio, SameNeedsBothSidesOfTheIntervalWithinWhatMatters) {
  const auto row = timed("a", 100, 1);
  EXPECT_EQ(pair(row, with(row, "time_us_q3", 104.0)).ratio.change, Change::unclear);
  EXPECT_EQ(pair(row, with(row, "time_us_q3", 102.5)).ratio.change, Change::same);
  for (const double q3 : {200.0, 1000.0, 1e300}) {  // two modes
    const auto c = pair(row, with(row, "time_us_q3", q3));
    EXPECT_EQ(c.ratio.change, Change::unclear) << q3;
    EXPECT_TRUE(test::has(c.ratio.reason, "above the ratio")) << c.ratio.reason;
  }
  EXPECT_EQ(pair(with(row, "time_us_q1", 50.0), row).ratio.change, Change::unclear);
  // 7 % faster, and not sure of it.
  EXPECT_EQ(pair(row, with(timed("a", 93, 1), "time_us_q3", 101.4)).ratio.change, Change::unclear);
}

TEST(Ratio, TimesThatAreNotFiniteAreInsufficient) {
  const auto row = timed("a", 100, 1);
  for (const auto column : {"time_us_q1", "time_us_q3", "median_lo_us", "median_hi_us"})
    for (const double us : {std::nan(""), double(INFINITY), -double(INFINITY), -5.0}) {
      const auto c = pair(row, with(row, column, us));
      EXPECT_EQ(c.ratio.change, Change::unclear) << column << us;
      EXPECT_TRUE(test::has(c.ratio.reason, "B: insufficient")) << c.ratio.reason;
      EXPECT_FALSE(test::has(c.ratio.reason, "% on")) << c.ratio.reason;
    }
  EXPECT_THROW(pair(row, with(row, "time_us_median", double(INFINITY))), harness::BadRequest);
}

TEST(Ratio, CountsThatAreNoCountsAreRefused) {
  for (const auto column : {"samples", "repeats"})
    for (const double count : {std::nan(""), 1e300, -5.0, 8.5})
      EXPECT_THROW(pair(timed("a", 100, 1), with(timed("a", 100, 1), column, count)),
                   harness::BadRequest)
          << column << count;
}

// Decimal percents have no exact binary ratio.
TEST(Ratio, ExactlyTheGateIsNoRegressionWhateverTheRounding) {
  for (const double pct : {2, 3, 4, 5, 6, 7, 10, 20, 25, 50, 100}) {
    const auto at = pair(timed("a", 100, 0.01), timed("a", 100 * (1 + pct / 100), 0.01), pct);
    EXPECT_EQ(at.ratio.change, Change::slower);
    EXPECT_FALSE(at.regression) << pct;
    EXPECT_TRUE(
        pair(timed("a", 100, 0.01), timed("a", 100 * (1 + pct / 100) + 1e-6, 0.01), pct).regression)
        << pct;
  }
}

TEST(Ratio, ReasonTellsAShortTimeFromAWideInterval) {
  auto wide = timed("a", 1542, 1);
  wide.set("median_lo_us", 100.0);
  wide.set("time_us_q1", 100.0);
  EXPECT_EQ(pair(timed("a", 1542, 1), wide).ratio.reason,
            "B: insufficient: its interval reaches down to 0");
  auto tiny = timed("b", 0.03, 0);
  auto step = timed("c", 10, 0);
  step.set("time_us_min", 9.968);
  tiny.set("time_us_min", 0.03);
  EXPECT_EQ(compare({tiny, step}, {tiny, step}).pairs.at(0).ratio.reason,
            "A: insufficient: as short as a step of the timer");
}

TEST(Ratio, TheVerySameRunIsSameWhateverItsRowsAre) {
  for (const auto& row :
       {with(timed("a", 10, 0), "time_us_min", 10.0), timed("a", 10, 1, 1), timed("a", 10, 60),
        with(timed("a", 10, 1), "status", std::string("impossible")),
        with(timed("a", 10, 1), "time_us_q3", {})}) {
    const auto run = of_run(row, "r1");
    EXPECT_EQ(compare({run}, {run}).pairs.at(0).ratio.change, Change::same);
    EXPECT_EQ(compare({run}, {run, run}).pairs.at(0).ratio.change, Change::same);
    EXPECT_EQ(compare({run}, {of_run(row, "r2")}).pairs.at(0).ratio.change, Change::unclear);
  }
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

TEST(Compare, ImplementationsHaveTheShortNamesThatRunKnows) {
  const auto mine = with(timed("a", 60, 1), "impl", std::string("mine/fast"));
  harness::ComparisonRules rules;
  const auto by = [&](const std::string& a, const std::string& b) {
    rules.impl_a = a;
    rules.impl_b = b;
    return compare({timed("a", 100, 1), mine}, {timed("a", 100, 1), mine}, rules);
  };
  ASSERT_EQ(by("portable", "fast").pairs.size(), 1u);
  EXPECT_EQ(by("portable", "fast").pairs[0].b.impl, "mine/fast");
  EXPECT_EQ(by("mine/fast", "fast").pairs[0].a.impl, "mine/fast");
  try {
    by("portble", "fast");
    ADD_FAILURE() << "an unknown name was taken";
  } catch (const harness::BadRequest& e) {
    EXPECT_TRUE(test::has(e.what(),
                          "a.csv: unknown implementation 'portble', nearest is "
                          "'portable'; it has mine/fast, portable"))
        << e.what();
  }
  // Two that end alike would be pooled.
  const auto other = with(timed("a", 70, 1), "impl", std::string("other/fast"));
  rules.impl_a = rules.impl_b = "fast";
  EXPECT_THROW(compare({mine, other}, {mine}, rules), harness::BadRequest);
}

// They are the machine's: a merge does not make a memory slower.
TEST(Compare, RoofsAreListedAndInNoVerdict) {
  auto roof = timed("x", 100, 1);
  roof.set("op", std::string("roof.read"));
  auto slower = with(timed("x", 150, 1), "op", std::string("roof.read"));
  const auto c = compare({roof, timed("a", 10, 1)}, {slower, timed("a", 10, 1)});
  EXPECT_EQ(c.pairs.size(), 2u);
  EXPECT_EQ(c.judged(), 1);
  EXPECT_EQ(c.count(Change::slower) + c.count(Change::unclear), 0);
  EXPECT_EQ(c.count(Change::ratio), 1);
  EXPECT_EQ(c.regressions(), 0);
  EXPECT_EQ(compare({roof, timed("a", 10, 1)}, {timed("a", 10, 1)}).unmatched(), 0);
}

TEST(Compare, WhatOneSideTimedAndTheOtherDidNotIsUnmatched) {
  const auto skipped = [](const std::string& name) {
    auto row = with(timed(name, 1, 1), "status", std::string("skip"));
    row.set("time_us_median", {});
    return row;
  };
  EXPECT_EQ(
      compare({timed("a", 10, 1), skipped("b")}, {timed("a", 10, 1), skipped("b")}).unmatched(), 0);
  const auto c = compare({timed("a", 10, 1), timed("b", 10, 1), timed("c", 10, 1)},
                         {timed("a", 10, 1), skipped("b")});
  EXPECT_EQ(c.lost, 1);
  EXPECT_EQ(c.unmatched(), 2);
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

TEST(Compare, DevicesThatOnlyOneFileHasAreLeftOver) {
  const auto other = with(timed("a", 50, 1), "device", std::string("NVIDIA A100"));
  auto oracle = with(timed("a", 900, 1), "device", std::string("Xeon"));
  oracle.set("backend", std::string("host"));
  const auto c = compare({timed("a", 100, 1), other, oracle}, {timed("a", 100, 1)});
  EXPECT_EQ(c.pairs.size(), 1u);
  EXPECT_EQ(c.only.size(), 2u);
  // The oracle's times are no reason to set two GPUs beside each other.
  EXPECT_THROW(compare({timed("a", 100, 1), oracle}, {other, oracle}), harness::BadRequest);
  EXPECT_EQ(compare({oracle}, {oracle}).pairs.size(), 1u);
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
