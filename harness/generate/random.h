// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: element i of a named stream of a seed, the same bits on every host, in any order and
// from any thread. Philox4x32-10 (Salmon et al., SC'11); key = seed, counter = (i, hash of stream name ^ use).
// Integer arithmetic and single exact IEEE operations only: no libm, no std::distribution (their results differ
// between libraries).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace harness {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Random {
 public:
  // Streams with different names are independent: Random(seed, "q"), Random(seed, "k_cache").
  Random(uint64_t seed, std::string_view stream);

  uint64_t bits(uint64_t i) const;
  double uniform(uint64_t i) const;            // [0,1), 53 bits
  int64_t below(uint64_t i, int64_t n) const;  // [0,n), n > 0
  // Approximately normal, mean 0, variance 1: a sum of eight 16-bit uniforms, so |x| <= 4.9.
  double normal(uint64_t i) const;
  // normal(first + i) = normal_of(sums[i]) for `count` numbers in turn: several times faster, for caches of gigabytes.
  void normal_sums(uint64_t first, int64_t count, int32_t* sums) const;
  static constexpr int32_t kNormalSums = 8 * 65535 + 1;  // a sum is in [0, kNormalSums)
  static double normal_of(int32_t sum);
  std::vector<int64_t> shuffle(int64_t n) const;                  // a permutation of 0..n-1
  std::vector<int64_t> distinct(int64_t k, int64_t n) const;      // k distinct of 0..n-1, ascending
  Random stream(std::string_view name) const;                     // a sub-stream of this one
  Random stream(std::string_view name, uint64_t index) const;

 private:
  Random(uint64_t seed, uint64_t hash) : seed_(seed), hash_(hash) {}
  std::array<uint32_t, 4> block(uint64_t i, uint32_t use) const;
  uint64_t seed_;
  uint64_t hash_;
};

}  // namespace harness
