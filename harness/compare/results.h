// SPDX-License-Identifier: Apache-2.0
// The rows of one result file, as far as comparing needs them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace harness {

// One row. Times are of one launch, in microseconds.
struct Timing {
  std::string op, impl, case_id, shape, dtype, fp8_flavour, l2, launch, backend, device, driver,
      git_sha, run_id, status, reason;
  int samples = 0, repeats = 1;
  std::optional<double> min, q1, median, q3, median_lo, median_hi;
  std::optional<double> roof_pct;
  bool timed() const { return median.has_value(); }
  // "qsa.attend/decode:rows=4 cold graph bf16": the case and its condition.
  std::string place() const;
  bool roof() const { return op.starts_with("roof."); }  // of the device; no case
  bool operator==(const Timing&) const = default;
};

struct Results {
  std::string file;
  std::vector<Timing> timed;     // status pass, inconclusive or impossible, with a median
  std::vector<Timing> failures;  // fail, error, timeout, crash, skip, unsupported
  int judged_only = 0;           // rows of a verifier: passed, not timed
  std::set<std::string> devices, drivers, revisions;  // of the timed rows
  std::set<std::string> hosts;  // those of the devices that only ran the oracle
  // One step of the timer that took these samples (one launch each), in microseconds: the smallest
  // difference between two samples that any row shows. Nothing where no row shows two values.
  std::optional<double> timer_step_us;
};

// Throws BadRequest naming file, line and column.
Results read_results(const std::string& file);

}  // namespace harness
