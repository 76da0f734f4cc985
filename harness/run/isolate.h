// SPDX-License-Identifier: Apache-2.0
// This program again, as a child process: what faults, hangs or leaves a broken GPU context there
// is gone with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace harness {

struct ChildEnd {
  bool timed_out = false;
  int status = 0;    // as waitpid gives it
  std::string said;  // the last line that it printed
  bool crashed() const;
  std::string how() const;  // "killed by signal 11 (Segmentation fault): last line"
};

inline constexpr int kChildLines = 3;  // the child writes its lines to this descriptor

// Runs /proc/self/exe (exec, never fork alone: a CUDA context does not survive a fork) with `input`
// on its standard input, in a process group of its own. `on_line` gets each whole line as it comes;
// what the child prints goes to our standard error. Killed, with all that it started, where no line
// comes for `limit_s` seconds (<= 0: no limit).
ChildEnd run_child(const std::vector<std::string>& arguments, const std::string& input,
                   double limit_s, const std::function<void(const std::string&)>& on_line);

// Kills the child that runs now, if there is one; from any thread.
void kill_child();

// In a child: do not outlive the parent.
void die_with_parent();

}  // namespace harness
