// SPDX-License-Identifier: Apache-2.0
// Sweeps, statistics, shell words: the parts alone.
#include <gtest/gtest.h>

#include "cli/plan.h"
#include "cli/sweep.h"
#include "harness/measure/sampling.h"
#include "harness/plugins/errors.h"

namespace {

using Texts = std::vector<std::string>;

TEST(Sweep, ListsAndRanges) {
  EXPECT_EQ(cli::parse_sweep("rows=1,7").values, (Texts{"1", "7"}));
  EXPECT_EQ(cli::parse_sweep("ctx=1024:8192:*2").values, (Texts{"1024", "2048", "4096", "8192"}));
  EXPECT_EQ(cli::parse_sweep("rows=1:9:+4").values, (Texts{"1", "5", "9"}));
  EXPECT_EQ(cli::parse_sweep("rows=1:3,9").values, (Texts{"1", "2", "3", "9"}));
  EXPECT_EQ(cli::parse_sweep("order=seed:x").values, (Texts{"seed:x"}));
}

TEST(Sweep, BracketsKeepCommas) {
  EXPECT_EQ(cli::parse_sweep("lens=[5,7,9]").values, (Texts{"5,7,9"}));
  EXPECT_EQ(cli::parse_sweep("lens=[5,7],8").values, (Texts{"5,7", "8"}));
  EXPECT_EQ(cli::parse_sweep(cli::axis_text("lens", "5,7")).values, (Texts{"5,7"}));
  EXPECT_EQ(cli::parse_sweep(cli::axis_text("span", "1:9")).values, (Texts{"1:9"}));
}

TEST(Sweep, NonsenseIsRefused) {
  for (const char* text :
       {"rows", "=1", "rows=", "rows=1,,2", "rows=4:1", "rows=1:9:*1", "rows=0:9:*2", "rows=1:9:+0",
        "rows=1:9:5", "rows=[1", "rows=[1]2", "rows=1:99999999"})
    EXPECT_THROW(cli::parse_sweep(text), harness::BadRequest) << text;
}

TEST(Sweep, EveryCombinationLastAxisFastest) {
  const auto all =
      cli::combine({{"c", "0"}}, {cli::parse_sweep("a=1,2"), cli::parse_sweep("b=3,4")});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1], (harness::Coordinates{{"a", "1"}, {"b", "4"}, {"c", "0"}}));
}

TEST(Statistics, QuartilesInterpolate) {
  const auto s = harness::summarize({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.q1, 1.75);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.q3, 3.25);
}

TEST(Statistics, IntervalOfTheMedianIsTheRangeWhereThereAreFewSamples) {
  const auto s = harness::summarize({1, 2, 3});
  EXPECT_DOUBLE_EQ(s.median_lo, 1);
  EXPECT_DOUBLE_EQ(s.median_hi, 3);
  EXPECT_DOUBLE_EQ(s.noise_pct, 50);
}

// Ranks 40 and 61 of 100 (the textbook's 95 % interval of a median).
TEST(Statistics, IntervalOfTheMedianFromOrderStatistics) {
  std::vector<double> samples;
  for (int i = 1; i <= 100; ++i) samples.push_back(i);
  const auto s = harness::summarize(samples);
  EXPECT_DOUBLE_EQ(s.median_lo, 40);
  EXPECT_DOUBLE_EQ(s.median_hi, 61);
}

TEST(Sampling, TakesTurnsAndStopsWhenSure) {
  std::vector<int> calls(2);
  std::string order;
  const auto subject = [&](int i) {
    return [&, i] {
      ++calls[i];
      order += char('a' + i);
      return 5.0;
    };
  };
  harness::SamplingRules rules;
  rules.min_time_s = 0;
  const auto s = take_samples({subject(0), subject(1)}, rules);
  EXPECT_EQ(calls[0], rules.min_samples);
  EXPECT_EQ(order.substr(0, 4), "abab");
  EXPECT_DOUBLE_EQ(s[0].noise_pct, 0);
}

TEST(Sampling, GivesUpWhenTheTimeIsUp) {
  int n = 0;
  harness::SamplingRules rules;
  rules.min_time_s = rules.max_time_s = 1e-4;
  const auto s = take_samples({[&] { return ++n % 2 ? 1.0 : 100.0; }}, rules);
  EXPECT_GT(s[0].noise_pct, rules.max_noise_pct);
}

TEST(Shell, WordsAreQuotedWhereTheyMustBe) {
  EXPECT_EQ(cli::shell_word("rows=4"), "rows=4");
  EXPECT_EQ(cli::shell_word("lens=[5,7]"), "'lens=[5,7]'");
  EXPECT_EQ(cli::shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(cli::shell_word(""), "''");
}

}  // namespace
