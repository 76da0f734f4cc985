// SPDX-License-Identifier: Apache-2.0
// The ratio of two medians, with an interval that holds between runs and not only within them.
//
// A row's own interval of its median (median_lo_us .. median_hi_us, 95 %, order statistics) takes
// its samples as independent. They are not: all samples of a run share clocks, placement and
// temperature, and with a thousand samples that interval is far narrower than the distance of two
// runs of one binary. So a side's interval is the widest of
//   - that interval, stretched to 99 %,
//   - the middle half of its samples (q1 .. q3), which is where a run with drifting or switching
//     clocks has its other states,
//   - a step of the timer to each side; all widened by what runs still differ (see ratio.cpp).
// The interval of the ratio is lo B / hi A .. hi B / lo A: no assumption about the two sides'
// independence. In words: SLOWER means that the middle halves of the two runs do not touch.
// Several runs of one case are pooled: the median of their medians, the hull of their intervals.
// A run is a run_id: rows of one run do not show how runs differ, however many they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/compare/results.h"

namespace harness {

// Worst first. `ratio`: no verdict; beside a peer whose times have no spread, and of roofs.
enum class Change : uint8_t { slower, unclear, faster, same, ratio };
std::string_view name_of(Change change);  // "SLOWER"

struct Side {
  double median_us = 0, lo_us = 0, hi_us = 0;
  int64_t samples = 0;
  std::string insufficient;  // why there is no interval; empty where there is one
};

struct Ratio {
  Change change = Change::unclear;
  double ratio = 0;        // time B / time A
  double lo = 0, hi = 0;   // its interval; 0 where there is none
  double visible_pct = 0;  // the smallest slowdown that this pair would have called SLOWER
  std::string reason;      // of UNCLEAR, or a remark
};

// `pct` is more than `limit_pct`. Both come from decimal text: a ratio of exactly 1.05 is not
// beyond 5 %, whatever the last bit of the division says.
bool beyond(double pct, double limit_pct);

// At least one row, none twice. `timer_step_us` as in Results.
Side side_of(const std::vector<const Timing*>& runs, std::optional<double> timer_step_us);

// SAME where the interval holds 1 and reaches no further than `matters_pct` below and above the
// ratio: a slowdown and a speed-up of that size would have been seen, and the ratio itself is no
// larger. UNCLEAR where it reaches further.
Ratio ratio_of(const Side& a, const Side& b, double matters_pct);

}  // namespace harness
