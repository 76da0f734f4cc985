// SPDX-License-Identifier: Apache-2.0
// Exit codes: what a script may conclude. The worst of a run wins: 6, 1, 5, 2, 4, 3, 0.
#pragma once

#include <string>

#include "harness/judge/verdict.h"

namespace cli {

enum Exit : int {
  kPass = 0,
  kWrong = 1,           // a wrong result
  kUsage = 2,           // usage, unknown name, device index out of range, bad input file
  kInconclusive = 3,    // noise, or faster than possible
  kRegression = 4,      // a case is slower than it was
  kDevice = 5,          // device or runtime error, timeout, crash, out of memory
  kFaultSurvived = 6,   // a planted fault was not noticed
  kNothingJudged = 77,  // no such backend, or every case skipped or unsupported
};

// Counts verdicts and tells the exit code.
class Tally {
 public:
  void count(harness::Status status, bool survived = false);
  void count_bad_input() { ++bad_input_; }
  int exit_code() const;
  int judged() const { return passed_ + failed_ + inconclusive_; }
  int passed() const { return passed_; }
  int skipped() const { return skipped_; }
  // "PASS 151 of 151 (3 skipped)"
  std::string line() const;

 private:
  int passed_ = 0, failed_ = 0, survived_ = 0, errors_ = 0, inconclusive_ = 0, skipped_ = 0,
      bad_input_ = 0;
};

}  // namespace cli
