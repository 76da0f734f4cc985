// SPDX-License-Identifier: Apache-2.0
// Times that a project asks of its kernels: a CSV `name,op,axes,best_peer_us,must_us,goal_us`, one line a
// shape (datasets/targets), held against the rows of a run. They judge nothing: a target that is missed is said.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/row.h"

namespace harness {

struct Target {
  std::string name, op, axes;
  std::optional<double> best_peer_us, must_us, goal_us;
};

// Throws BadRequest with file and line: unreadable, a column missing, a time that is none, an op or axis that does not exist.
std::vector<Target> read_targets(const std::string& file);

// A target with what was measured.
struct TargetResult {
  Target target;
  std::optional<double> peer_us;  // of --peer: its time of this very shape
  std::optional<double> us;       // the least median of a passed row with a cold L2; none: not measured
  std::string impl;               // whose
  bool missed() const { return us && target.must_us && *us > *target.must_us; }
  std::string verdict() const;  // "goal", "met", "missed by 3.1 %", "not measured"
};

// Missed ones first, the farthest before the others, then those that were not measured, then the rest as in the file.
std::vector<TargetResult> hold_to_targets(const std::vector<Target>& targets, const std::vector<Row>& rows,
                                          const std::vector<Row>& peers);
// "57 of 68 met, 12 of them the goal; 9 missed, 2 not measured"
std::string summary_of(const std::vector<TargetResult>& results);

}  // namespace harness
