// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM end a run in good order, even while a kernel hangs.
#pragma once

#include <functional>
#include <thread>

namespace harness {

class Interrupt {
 public:
  // At the first of these signals `give_up(signal)` writes what has to be on disk, on a thread of
  // its own and not in a signal handler, and returns the exit code; the process then ends without
  // destructors. One object at a time.
  explicit Interrupt(std::function<int(int)> give_up);
  ~Interrupt();                          // the signals do again what they did before
  Interrupt(const Interrupt&) = delete;  // owns a thread that points to it
  Interrupt& operator=(const Interrupt&) = delete;

 private:
  const std::function<int(int)> give_up_;
  int read_ = -1;
  std::thread thread_;
};

}  // namespace harness
