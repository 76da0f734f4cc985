// SPDX-License-Identifier: Apache-2.0
#include "harness/run/watchdog.h"

#include <unistd.h>

namespace harness {

using Clock = std::chrono::steady_clock;

Watchdog::Watchdog(double seconds, std::function<int()> give_up)
    : limit_(seconds), give_up_(std::move(give_up)) {
  if (seconds > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::start() {
  const std::lock_guard lock(mutex_);
  due_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_);
  changed_.notify_one();
}

void Watchdog::stop() {
  const std::lock_guard lock(mutex_);
  due_ = Clock::time_point::max();
  changed_.notify_one();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (due_ == Clock::time_point::max())
      changed_.wait(lock);
    else
      changed_.wait_until(lock, due_);
    if (!ended_ && due_ != Clock::time_point::max() && Clock::now() >= due_) _exit(give_up_());
  }
}

}  // namespace harness
