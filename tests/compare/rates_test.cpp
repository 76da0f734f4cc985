// SPDX-License-Identifier: Apache-2.0
// How often is one binary called slower or faster than itself, and how often is a slowdown of 5 %
// found? Synthetic samples with the noise that timings have; the rows go through files, as real
// ones do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numbers>
#include <random>

#include "compare/files.h"
#include "harness/compare/comparison.h"

namespace {

constexpr int kPairs = 200;
constexpr double kStepUs = 0.032;  // of the event timer of an H200

// One run of one case. What differs from run to run: how many samples, where the drift stands, how
// long the clock stays in its other state, and a small shift that no sample of the run shows.
std::vector<double> samples_of(std::mt19937_64& random, double true_us) {
  const auto uniform = [&](double lo, double hi) {
    return std::uniform_real_distribution(lo, hi)(random);
  };
  std::normal_distribution<double> normal;
  const int count = std::uniform_int_distribution(30, 700)(random);
  const double jitter = uniform(0.003, 0.012);  // log-normal
  const double drift = uniform(0, 0.01), phase = uniform(0, 2 * std::numbers::pi);
  const double other_clock = uniform(0, 0.5), gap = uniform(0, 0.02);
  const double shift = std::exp(0.005 * normal(random));
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) {
    double us = true_us * shift * std::exp(jitter * normal(random));
    us *= 1 + drift * std::sin(phase + std::numbers::pi * i / count);
    if (uniform(0, 1) < other_clock) us *= 1 + gap;
    if (uniform(0, 1) < 0.01) us *= uniform(1.2, 3);  // an interrupt, another client
    samples.push_back(std::floor(us / kStepUs) * kStepUs);
  }
  return samples;
}

std::vector<harness::Row> rows_of(std::mt19937_64& random, const std::vector<double>& true_us,
                                  double factor) {
  std::vector<harness::Row> rows;
  for (size_t i = 0; i < true_us.size(); ++i) {
    const auto s = harness::summarize(samples_of(random, true_us[i] * factor));
    harness::Row row = test::timed("case-" + std::to_string(i), s.median, 0, s.samples);
    row.set("time_us_min", s.min);
    row.set("time_us_q1", s.q1);
    row.set("time_us_q3", s.q3);
    row.set("median_lo_us", s.median_lo);
    row.set("median_hi_us", s.median_hi);
    rows.push_back(row);
  }
  return rows;
}

harness::Comparison compare(std::mt19937_64& random, const std::vector<double>& true_us,
                            double factor) {
  const auto a = test::file_of("rates-a.csv", rows_of(random, true_us, 1));
  const auto b = test::file_of("rates-b.csv", rows_of(random, true_us, factor));
  return harness::compare(harness::read_results(a), harness::read_results(b), {});
}

std::vector<double> times(std::mt19937_64& random, double from_us, double to_us) {
  std::uniform_real_distribution<double> exponent(std::log(from_us), std::log(to_us));
  std::vector<double> times;
  for (int i = 0; i < kPairs; ++i) times.push_back(std::exp(exponent(random)));
  return times;
}

TEST(Rates, OneBinaryIsSlowerOrFasterThanItselfInAtMostOnePercent) {
  for (const auto& [from, to] : {std::pair(2.0, 20.0), std::pair(20.0, 2000.0)})
    for (const uint64_t seed : {1, 2, 3}) {
      std::mt19937_64 random(seed);
      const auto c = compare(random, times(random, from, to), 1);
      const int wrong = c.count(harness::Change::slower) + c.count(harness::Change::faster);
      std::printf(
          "same binary, %4.0f .. %4.0f us, seed %d: %d of %d false (%.1f %%), %d SAME, %d "
          "UNCLEAR\n",
          from, to, static_cast<int>(seed), wrong, kPairs, 100.0 * wrong / kPairs,
          c.count(harness::Change::same), c.count(harness::Change::unclear));
      EXPECT_LE(wrong, kPairs / 100);
    }
}

TEST(Rates, ASlowdownOfFivePercentIsFoundInAtLeast95Percent) {
  for (const uint64_t seed : {1, 2, 3}) {
    std::mt19937_64 random(seed);
    const auto c = compare(random, times(random, 20, 2000), 1.05);
    const int found = c.count(harness::Change::slower);
    std::printf("5 %% slower, 20 .. 2000 us, seed %d: %d of %d found (%.1f %%)\n",
                static_cast<int>(seed), found, kPairs, 100.0 * found / kPairs);
    EXPECT_GE(found, kPairs * 95 / 100);
    EXPECT_EQ(c.count(harness::Change::faster), 0);
  }
}

TEST(Rates, ASpeedUpOfFivePercentIsFoundAsOften) {
  std::mt19937_64 random(4);
  const auto c = compare(random, times(random, 20, 2000), 1 / 1.05);
  EXPECT_GE(c.count(harness::Change::faster), kPairs * 95 / 100);
  EXPECT_EQ(c.regressions(), 0);
}

// The interval of the median alone would be wrong: runs of one binary differ by more.
TEST(Rates, TheMediansOwnIntervalAloneWouldRaiseFalseAlarms) {
  std::mt19937_64 random(1);
  const auto c = compare(random, times(random, 20, 2000), 1);
  int touching = 0;
  for (const auto& pair : c.pairs)
    touching += *pair.a.median_lo <= *pair.b.median_hi && *pair.b.median_lo <= *pair.a.median_hi;
  EXPECT_LT(touching, kPairs * 9 / 10);
}

}  // namespace
