// SPDX-License-Identifier: Apache-2.0
// Work that falls into parts which do not depend on each other, such as the rows of an oracle, on all
// cores of the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace reference {

// Calls body(i) once for each i in [0, count), in no order and at the same time: a body writes
// nothing but what belongs to its own i. The first exception comes out, after all have ended.
template <class Body>
void for_each_row(int64_t count, const Body& body) {
  const int64_t most = std::max(1u, std::thread::hardware_concurrency());
  if (std::min(count, most) <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr thrown;
  const auto work = [&] {
    try {
      for (int64_t i; (i = next++) < count;) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t n = std::min(count, most); --n > 0;) others.emplace_back(work);
    work();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace reference
