// SPDX-License-Identifier: Apache-2.0
// The time limit of a case: a thread that ends the program when a case does not return.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace harness {

class Watchdog {
 public:
  // `give_up` writes what has to be on disk and returns the exit code; the process then ends
  // without destructors, because a hanging kernel lets go of nothing. Seconds <= 0: no limit.
  Watchdog(double seconds, std::function<int()> give_up);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;  // owns a thread that points to it
  Watchdog& operator=(const Watchdog&) = delete;
  void start();  // the limit counts from here
  void stop();

 private:
  void watch();
  const std::chrono::duration<double> limit_;
  const std::function<int()> give_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::time_point::max();
  bool ended_ = false;
  std::thread thread_;
};

// Starts and stops it over a scope.
class Watched {
 public:
  explicit Watched(Watchdog& dog) : dog_(dog) { dog_.start(); }
  ~Watched() { dog_.stop(); }
  Watched(const Watched&) = delete;  // stops the limit once
  Watched& operator=(const Watched&) = delete;

 private:
  Watchdog& dog_;
};

}  // namespace harness
