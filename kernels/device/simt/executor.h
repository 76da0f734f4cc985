// SPDX-License-Identifier: Apache-2.0
// Runs a kernel's grid on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace simt {

// In what order lanes, waves and blocks take their turns. The result of a right kernel does not
// depend on it.
enum class Order : uint8_t { forward, reverse, shuffled };

struct Options {
  Order order = Order::forward;
  uint64_t seed = 0;   // of Order::shuffled
  int os_threads = 1;  // blocks are spread over them; a block stays on one
};
Options& options();  // of the process; change it while nothing runs

// "forward" (or "fwd"), "reverse" (or "rev"), "seed:N". False: `text` is none of them.
bool parse_order(std::string_view text, Options& options);

struct Launch {
  const void* kernel;   // the function, for its name in reports
  void (*body)(void*);  // runs one lane
  void* call;           // handed to body
  std::array<int64_t, 3> blocks;
  int threads;
  int wave;  // 32 or 64
  size_t dynamic_shared_bytes;
};

// What is wrong with a launch or with the kernel, in full.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs all blocks. Throws KernelError; the executor stays usable.
void run(const Launch& launch);

// What a block is told that it may have of shared memory with this wave width: the smallest of the
// machines it stands for (sm_80's opt-in maximum, gfx942's LDS). And what it may have: kernels for
// one machine (sm_90) know its limit.
constexpr size_t described_shared(int wave) { return wave == 32 ? 166912 : 65536; }
constexpr size_t shared_limit(int wave) { return wave == 32 ? 232448 : 65536; }
constexpr size_t kStaticSharedLimit = 48 * 1024;

}  // namespace simt
