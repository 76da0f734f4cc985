// SPDX-License-Identifier: Apache-2.0
#include "executor.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "block.h"
#include "device/symbol_name.h"

namespace simt {
namespace {

// Two blocks by turns under ThreadSanitizer: the lanes of one follow each other, and what one
// orders it does not report.
#ifdef SIMT_TSAN
constexpr size_t kBlocksPerThread = 2;
#else
constexpr size_t kBlocksPerThread = 1;
#endif

void check(const Launch& launch) {
  const auto refuse = [&](const std::string& why) {
    throw KernelError("simt: " + device::symbol_name(launch.kernel) + ": not launched: " + why);
  };
  if (launch.threads < 1 || launch.threads > 1024 || launch.threads % launch.wave != 0)
    refuse("expected 1 to 1024 threads, a multiple of " + std::to_string(launch.wave) + ", got " +
           std::to_string(launch.threads));
  constexpr std::array<int64_t, 3> kLargest{0x7fffffff, 65535, 65535};
  for (size_t d = 0; d < 3; ++d)
    if (launch.blocks[d] < 0 || launch.blocks[d] > kLargest[d])
      refuse("expected at most " + std::to_string(kLargest[d]) + " blocks along " + "xyz"[d] +
             ", got " + std::to_string(launch.blocks[d]));
  if (launch.dynamic_shared_bytes > shared_limit(launch.wave))
    refuse("expected at most " + std::to_string(shared_limit(launch.wave)) +
           " bytes of dynamic shared memory, got " + std::to_string(launch.dynamic_shared_bytes));
}

// A sequence of all block numbers.
class BlockOrder {
 public:
  BlockOrder(const Options& options, int64_t total) : order_(options.order), total_(total) {
    if (order_ != Order::shuffled) return;
    step_ = static_cast<int64_t>((options.seed * 0x9e3779b97f4a7c15u >> 16) %
                                 static_cast<uint64_t>(total)) |
            1;
    while (std::gcd(step_, total) != 1) step_ += 2;
    first_ = static_cast<int64_t>(options.seed % static_cast<uint64_t>(total));
  }
  int64_t operator[](int64_t i) const {
    switch (order_) {
      case Order::forward:
        return i;
      case Order::reverse:
        return total_ - 1 - i;
      case Order::shuffled:
        break;
    }
    return static_cast<int64_t>((static_cast<__int128>(i) * step_ + first_) % total_);
  }

 private:
  Order order_;
  int64_t total_, step_ = 1, first_ = 0;
};

}  // namespace

Options& options() {
  static Options the_options;
  return the_options;
}

bool parse_order(std::string_view text, Options& options) {
  if (text == "forward" || text == "fwd") {
    options.order = Order::forward;
  } else if (text == "reverse" || text == "rev") {
    options.order = Order::reverse;
  } else if (text.starts_with("seed:")) {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data() + 5, text.data() + text.size(), seed);
    if (error != std::errc{} || end != text.data() + text.size() || text.size() == 5) return false;
    options.order = Order::shuffled;
    options.seed = seed;
  } else {
    return false;
  }
  return true;
}

void run(const Launch& launch) {
  const int64_t total = launch.blocks[0] * launch.blocks[1] * launch.blocks[2];
  if (current) throw KernelError("simt: a kernel cannot launch a kernel");
  check(launch);
  if (total == 0) return;
  const Options chosen = options();
  const BlockOrder order(chosen, total);
  const auto workers = static_cast<size_t>(std::clamp<int64_t>(chosen.os_threads, 1, total));

  thread_local std::vector<std::unique_ptr<Block>> blocks;  // kept for the next launch
  while (blocks.size() < workers * kBlocksPerThread) blocks.push_back(std::make_unique<Block>());

  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string failure;
  const auto work = [&](const std::unique_ptr<Block>* mine) {
    try {
      for (size_t b = 0; b < kBlocksPerThread; ++b) mine[b]->prepare(launch, chosen);
      int64_t i;
      for (size_t turn = 0; !failed && (i = next++) < total; ++turn) {
        Block& block = *mine[turn % kBlocksPerThread];
        if (block.run(order[i])) continue;
        const std::lock_guard lock(mutex);
        if (!failed.exchange(true)) failure = block.failure();
      }
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) failure = "simt: " + device::symbol_name(launch.kernel) + ": " + e.what();
    }
  };
  if (workers == 1) {
    work(blocks.data());
  } else {
    std::vector<std::thread> threads;
    for (size_t w = 0; w < workers; ++w)
      threads.emplace_back(work, blocks.data() + w * kBlocksPerThread);
    for (std::thread& t : threads) t.join();
  }
  for (size_t b = 0; b < workers * kBlocksPerThread; ++b) blocks[b]->join();
  if (failed) throw KernelError(failure);
}

}  // namespace simt
