// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace cli {

namespace {

constexpr const char* kEraseLine = "\r\x1b[K";
constexpr size_t kWidth = 78;  // a longer line would wrap and could not be erased

}  // namespace

Progress::Progress(int asked) : on_(asked == 1 || (asked < 0 && ::isatty(STDERR_FILENO))) {}

void Progress::show(size_t done, size_t all, const std::string& case_id) {
  if (!on_) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  fmt::print(stderr, "{}{}", kEraseLine, progress_text(done, all, elapsed.count(), case_id));
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "{}", kEraseLine);
  std::fflush(stderr);
  shown_ = false;
}

std::string progress_text(size_t done, size_t all, double elapsed_s, const std::string& case_id) {
  std::string text = fmt::format("case {} of {}", done + 1, all);
  if (done > 0) {
    const auto left = static_cast<int64_t>(elapsed_s / done * (all - done) + 0.5);
    text += fmt::format(", eta {}:{:02}", left / 60, left % 60);
  }
  text += ": " + case_id;
  return text.size() > kWidth ? text.substr(0, kWidth - 3) + "..." : text;
}

}  // namespace cli
