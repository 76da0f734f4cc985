// SPDX-License-Identifier: Apache-2.0
// One line on a terminal that tells how far a sweep is; nothing where standard error is no
// terminal.
#pragma once

#include <chrono>
#include <string>

namespace cli {

class Progress {
 public:
  // `asked`: 1 --progress, 0 --no-progress, -1 neither (on a terminal only).
  explicit Progress(int asked);
  void show(size_t done, size_t all, const std::string& case_id);  // before case done + 1
  void clear();  // before another line goes to the terminal

 private:
  const bool on_;
  bool shown_ = false;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// "case 12 of 227, 1:20 left (estimate): qsa.attend/decode"
std::string progress_text(size_t done, size_t all, double elapsed_s, const std::string& case_id);

}  // namespace cli
