// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

#include <fmt/format.h>

namespace cli {

using harness::Status;

void Tally::count(Status status, bool survived) {
  survived_ += survived;
  switch (status) {
    case Status::pass:
      ++passed_;
      break;
    case Status::fail:
      ++failed_;
      break;
    case Status::error:
    case Status::timeout:
    case Status::crash:
      ++errors_;
      break;
    case Status::inconclusive:
    case Status::impossible:
      ++inconclusive_;
      break;
    case Status::skip:
    case Status::unsupported:
      ++skipped_;
      break;
  }
}

int Tally::exit_code() const {
  if (survived_) return kFaultSurvived;
  if (failed_) return kWrong;
  if (errors_) return kDevice;
  if (bad_input_) return kUsage;
  if (inconclusive_) return kInconclusive;
  return judged() ? kPass : kNothingJudged;
}

std::string Tally::line() const {
  std::string extra;
  const auto add = [&](int n, std::string_view what) {
    if (n) extra += fmt::format("{}{} {}", extra.empty() ? "" : ", ", n, what);
  };
  add(errors_, "errors");
  add(inconclusive_, "inconclusive");
  add(bad_input_, "bad inputs");
  add(skipped_, "skipped");
  if (!extra.empty()) extra = " (" + extra + ")";
  const int total = judged() + errors_ + bad_input_;
  switch (exit_code()) {
    case kFaultSurvived:
      return fmt::format("FAULT SURVIVED in {} of {}{}", survived_, total, extra);
    case kWrong:
      return fmt::format("FAIL {} of {}{}", failed_, total, extra);
    case kDevice:
      return fmt::format("ERROR {} of {}{}", errors_, total, extra);
    case kUsage:
      return fmt::format("BAD INPUT {} of {}{}", bad_input_, total, extra);
    case kInconclusive:
      return fmt::format("INCONCLUSIVE {} of {}{}", inconclusive_, total, extra);
    case kNothingJudged:
      return fmt::format("NOTHING JUDGED{}", extra);
    default:
      return fmt::format("PASS {} of {}{}", passed_, total, extra);
  }
}

}  // namespace cli
