// SPDX-License-Identifier: Apache-2.0
// What judging one case gives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace harness {

enum class Status { pass, fail, error, timeout, crash, skip, unsupported, inconclusive, impossible };
std::string_view name_of(Status);

struct Verdict {
  Status status = Status::pass;
  std::string reason;                 // one line; empty for a plain pass
  std::vector<std::string> findings;  // faults of the input, beside the verdict; --strict makes them count
  std::vector<std::string> notes;     // what else a reader wants to know of the results, such as their quality
  // Over all judged elements of all outputs:
  int64_t judged = 0;
  int64_t mismatches = 0;
  int64_t nonfinite = 0;              // NaN or inf where a finite value was due
  int64_t unwritten = 0;              // elements that still hold the poison
  double err_max_abs = 0;
  double err_rel_l2 = 0;
  double bound = 0;                   // bound at the worst element
  double used_share = 0;              // worst |error| / bound; 0 for exact outputs that match
  std::string first_bad;              // "output: row 3, head 2, dim 17 (token 45, page 7): expected 0.25 +- 1e-3, got 7.1"
};

// Folds the verdict of one output into that of the case: the worst status and share win, the first bad stays.
void fold(Verdict& into, const Verdict& part);

}  // namespace harness
