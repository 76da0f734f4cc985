// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/plugins/errors.h"
#include "harness/report/schema.h"
#include "harness/report/table.h"

namespace harness {

namespace {

// Events give float milliseconds: what differs by less is rounding, not a step of the timer.
constexpr double kRounding = 1e-6;

int whole_number(const Table& table, const Record& r, std::string_view column, int least) {
  const double value = table.number(r, column).value_or(least);
  if (value >= least && value <= std::numeric_limits<int>::max() && value == std::floor(value))
    return static_cast<int>(value);
  throw BadRequest(fmt::format("{}:{}: {}: expected a whole number of at least {}, got {}",
                               table.file, r.line, column, least, r.text(column)));
}

Timing timing_of(const Table& table, const Record& r) {
  Timing t;
  t.op = r.text("op");
  t.impl = r.text("impl");
  t.case_id = r.text("case_id");
  t.shape = r.text("shape");
  t.dtype = r.text("dtype");
  t.fp8_flavour = r.text("fp8_flavour");
  t.l2 = r.text("l2");
  t.launch = r.text("launch");
  t.backend = r.text("backend");
  t.device = r.text("device");
  t.driver = r.text("driver");
  t.git_sha = r.text("git_sha");
  t.run_id = r.text("run_id");
  t.status = r.text("status");
  t.reason = r.text("reason");
  t.samples = whole_number(table, r, "samples", 0);
  t.repeats = whole_number(table, r, "repeats", 1);
  t.min = table.number(r, "time_us_min");
  t.q1 = table.number(r, "time_us_q1");
  t.median = table.number(r, "time_us_median");
  t.q3 = table.number(r, "time_us_q3");
  t.median_lo = table.number(r, "median_lo_us");
  t.median_hi = table.number(r, "median_hi_us");
  t.roof_pct = table.number(r, "roof_pct");
  if (t.op.empty() || t.case_id.empty() || t.status.empty())
    throw BadRequest(fmt::format("{}:{}: expected a result row, got one without {}", table.file,
                                 r.line,
                                 t.op.empty()        ? "op"
                                 : t.case_id.empty() ? "case_id"
                                                     : "status"));
  if (t.median && !(*t.median > 0 && std::isfinite(*t.median)))
    throw BadRequest(fmt::format("{}:{}: time_us_median: expected more than 0 and finite, got {}",
                                 table.file, r.line, *t.median));
  return t;
}

bool counts_as_timed(const std::string& status) {
  return status == "pass" || status == "inconclusive" || status == "impossible";
}

// Of samples, not of quantiles between two of them: the minimum and the ends of the median's
// interval are samples.
void look_for_step(Results& results, const Timing& t) {
  const std::optional<double> from[] = {t.min, t.median_lo}, to[] = {t.median_lo, t.median_hi};
  for (int i = 0; i < 2; ++i) {
    if (!from[i] || !to[i]) continue;
    const double gap = *to[i] - *from[i];
    if (!(gap > kRounding * *t.median) || !std::isfinite(gap)) continue;
    const double step = gap * t.repeats;
    if (!results.timer_step_us || step < *results.timer_step_us) results.timer_step_us = step;
  }
}

}  // namespace

std::string Timing::place() const {
  std::string text = case_id;
  for (const auto& part : {l2, launch, dtype, fp8_flavour})
    if (!part.empty()) text += " " + part;
  return text;
}

Results read_results(const std::string& file) {
  const Table table = read_table(
      file, {"op", "impl", "case_id", "device", "l2", "launch", "status", "samples", "time_us_q1",
             "time_us_median", "time_us_q3", "median_lo_us", "median_hi_us"});
  check_schema(table);
  Results results;
  results.file = file;
  std::set<std::string> timed_devices;  // that ran more than the oracle
  for (const Record& record : table.records) {
    Timing t = timing_of(table, record);
    if (!counts_as_timed(t.status)) {
      results.failures.push_back(std::move(t));
    } else if (!t.timed()) {
      ++results.judged_only;
    } else {
      (t.backend == "host" ? results.hosts : timed_devices).insert(t.device);
      if (!t.driver.empty()) results.drivers.insert(t.driver);
      if (!t.git_sha.empty()) results.revisions.insert(t.git_sha);
      look_for_step(results, t);
      results.timed.push_back(std::move(t));
    }
  }
  results.devices = timed_devices;
  results.devices.insert(results.hosts.begin(), results.hosts.end());
  for (const auto& device : timed_devices) results.hosts.erase(device);
  return results;
}

}  // namespace harness
