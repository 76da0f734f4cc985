// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/ratio.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace harness {

namespace {

// Below 8 samples order statistics have no 99 % interval: 2 * 0.5^n > 0.01.
constexpr int kFewestSamples = 8;
constexpr double kStretch = 2.575829 / 1.959964;  // 95 % -> 99 %
// A shift of a whole run that none of its samples shows. Measured: of 141 cases timed in two runs
// on an H200, 2 were called different without this factor to each side, none with it. Three runs of
// a case in one file show it themselves.
constexpr double kBetweenRuns = 1.005;
constexpr size_t kRunsThatShowIt = 3;
constexpr double kRoundingPct = 1e-9;

std::string lacks(const Timing& t, const std::optional<double>& timer_step_us) {
  if (t.status != "pass") return t.status + (t.reason.empty() ? std::string() : ": " + t.reason);
  if (t.samples < kFewestSamples)
    return fmt::format("insufficient: {} samples, at least {} are needed", t.samples,
                       kFewestSamples);
  if (!t.q1 || !t.q3 || !t.median_lo || !t.median_hi)
    return "insufficient: a row without quartiles or interval of the median";
  for (const double us : {*t.q1, *t.q3, *t.median_lo, *t.median_hi})
    if (!std::isfinite(us) || us < 0)
      return fmt::format("insufficient: quartiles or interval of the median with {} us", us);
  if (*t.q1 > *t.median || *t.q3 < *t.median || *t.median_lo > *t.median ||
      *t.median_hi < *t.median)
    return "insufficient: a median outside its own quartiles or interval";
  if (*t.q1 == *t.q3 && *t.median_lo == *t.median_hi && !timer_step_us)
    return "insufficient: no spread at all, and no other row shows a step of the timer";
  return {};
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

std::string_view name_of(Change change) {
  switch (change) {
    case Change::slower:
      return "SLOWER";
    case Change::unclear:
      return "UNCLEAR";
    case Change::faster:
      return "FASTER";
    case Change::same:
      return "SAME";
    case Change::ratio:
      return "RATIO";
  }
  return {};
}

bool beyond(double pct, double limit_pct) { return pct > limit_pct + kRoundingPct; }

Side side_of(const std::vector<const Timing*>& runs, std::optional<double> timer_step_us) {
  Side side;
  std::vector<double> medians;
  std::set<std::string> run_ids;
  for (const Timing* t : runs) {
    medians.push_back(*t->median);
    run_ids.insert(t->run_id);
    side.samples += t->samples;
    if (side.insufficient.empty()) side.insufficient = lacks(*t, timer_step_us);
  }
  side.median_us = median_of(medians);
  if (!side.insufficient.empty()) return side;
  for (const Timing* t : runs) {
    const double step = timer_step_us.value_or(0) / t->repeats;
    const double lo = std::min(*t->q1, *t->median - kStretch * (*t->median - *t->median_lo)) - step;
    const double hi = std::max(*t->q3, *t->median + kStretch * (*t->median_hi - *t->median)) + step;
    side.lo_us = t == runs.front() ? lo : std::min(side.lo_us, lo);
    side.hi_us = t == runs.front() ? hi : std::max(side.hi_us, hi);
  }
  if (run_ids.size() < kRunsThatShowIt) {
    side.lo_us /= kBetweenRuns;
    side.hi_us *= kBetweenRuns;
  }
  if (side.lo_us <= 0)
    side.insufficient = side.median_us <= timer_step_us.value_or(0)
                            ? "insufficient: as short as a step of the timer"
                            : "insufficient: its interval reaches down to 0";
  return side;
}

Ratio ratio_of(const Side& a, const Side& b, double matters_pct) {
  Ratio r;
  r.ratio = b.median_us / a.median_us;
  if (!a.insufficient.empty() || !b.insufficient.empty()) {
    r.reason = a.insufficient.empty() ? "B: " + b.insufficient : "A: " + a.insufficient;
    return r;
  }
  r.lo = b.lo_us / a.hi_us;
  r.hi = b.hi_us / a.lo_us;
  r.visible_pct = 100 * (r.ratio / r.lo - 1);
  if (r.lo > 1) {
    r.change = Change::slower;
  } else if (r.hi < 1) {
    r.change = Change::faster;
  } else if (beyond(r.visible_pct, matters_pct)) {
    r.reason = fmt::format("a slowdown of {:.3g} % matters, this pair sees one from {:.2f} % on",
                           matters_pct, r.visible_pct);
  } else if (const double above_pct = 100 * (r.hi / r.ratio - 1); beyond(above_pct, matters_pct)) {
    // Two modes, say: the median and all below it agree, and a quarter of the samples does not.
    r.reason = fmt::format("{:.3g} % matter, and the interval reaches {:.2f} % above the ratio",
                           matters_pct, above_pct);
  } else {
    r.change = Change::same;
  }
  return r;
}

}  // namespace harness
