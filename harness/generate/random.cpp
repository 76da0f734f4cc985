// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/random.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WITH_AVX2
#endif

namespace harness {

namespace {

// What a counter is used for: uses of one stream do not share numbers.
enum Use : uint32_t { kBits = 0, kNormal = 1, kShuffle = 2 };

uint64_t fnv1a(std::string_view text, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hash;
}

// 64 x 64 -> the upper 64 bits.
uint64_t upper_product(uint64_t a, uint64_t b) {
  const uint64_t al = uint32_t(a), ah = a >> 32, bl = uint32_t(b), bh = b >> 32;
  const uint64_t middle = ah * bl + (al * bl >> 32);
  return ah * bh + (middle >> 32) + ((al * bh + uint32_t(middle)) >> 32);
}

void require_positive(int64_t n, const char* what) {
  if (n <= 0)
    throw std::invalid_argument(std::string(what) + ": expected n > 0, got " + std::to_string(n));
}

#ifdef WITH_AVX2
// The sums of 16 blocks by philox4x32_10, each number in the lower half of a 64-bit lane (what the upper halves hold does
// not matter to the product).
__attribute__((target("avx2"))) void sixteen_sums(uint64_t first, std::array<uint32_t, 2> stream,
                                                  std::array<uint32_t, 2> key, int32_t* sums) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0[4], c1[4], c2[4], c3[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m256i i = _mm256_add_epi64(_mm256_set1_epi64x(int64_t(first + uint64_t(4 * v))),
                                       _mm256_setr_epi64x(0, 1, 2, 3));
    c0[v] = i;
    c1[v] = _mm256_srli_epi64(i, 32);
    c2[v] = _mm256_set1_epi64x(stream[0]);
    c3[v] = _mm256_set1_epi64x(stream[1]);
  }
  for (int round = 0; round < 10; ++round, key[0] += 0x9E3779B9, key[1] += 0xBB67AE85) {
    const __m256i k0 = _mm256_set1_epi64x(key[0]), k1 = _mm256_set1_epi64x(key[1]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i a = _mm256_mul_epu32(m0, c0[v]), b = _mm256_mul_epu32(m1, c2[v]);
      c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), c1[v]), k0);
      c1[v] = b;
      c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), c3[v]), k1);
      c3[v] = a;
    }
  }
  const __m256i low = _mm256_set1_epi64x(0xffff), word = _mm256_set1_epi64x(0xffffffff);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    __m256i sum = _mm256_setzero_si256();
    for (const __m256i& c : {c0[v], c1[v], c2[v], c3[v]})
      sum = _mm256_add_epi64(sum, _mm256_add_epi64(_mm256_and_si256(c, low),
                                                   _mm256_srli_epi64(_mm256_and_si256(c, word), 16)));
    alignas(32) int64_t four[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(four), sum);
    for (int i = 0; i < 4; ++i) sums[4 * v + i] = int32_t(four[i]);
  }
}
#endif

}  // namespace

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k[1],
         uint32_t(a)};
    k[0] += 0x9E3779B9;  // the golden ratio and sqrt(3)-1, as Philox defines its key schedule
    k[1] += 0xBB67AE85;
  }
  return c;
}

Random::Random(uint64_t seed, std::string_view stream) : Random(seed, fnv1a(stream)) {}

Random Random::stream(std::string_view name) const { return {seed_, fnv1a(name, hash_ ^ 0xff)}; }

Random Random::stream(std::string_view name, uint64_t index) const {
  return stream(std::string(name) + "#" + std::to_string(index));
}

std::array<uint32_t, 4> Random::block(uint64_t i, uint32_t use) const {
  return philox4x32_10(
      {uint32_t(i), uint32_t(i >> 32), uint32_t(hash_), uint32_t(hash_ >> 32) ^ use},
      {uint32_t(seed_), uint32_t(seed_ >> 32)});
}

uint64_t Random::bits(uint64_t i) const {
  const auto b = block(i, kBits);
  return uint64_t{b[1]} << 32 | b[0];
}

double Random::uniform(uint64_t i) const { return double(bits(i) >> 11) * 0x1p-53; }

int64_t Random::below(uint64_t i, int64_t n) const {
  require_positive(n, "Random::below");
  return int64_t(upper_product(bits(i), uint64_t(n)));
}

double Random::normal(uint64_t i) const {
  int32_t sum = 0;
  normal_sums(i, 1, &sum);
  return normal_of(sum);
}

double Random::normal_of(int32_t sum) {
  // Mean of eight: 4 * 65535; variance: 8 * (65536^2 - 1) / 12; the constant is 1 / its root.
  return double(sum - 4 * 65535) * 1.8688123650118534e-05;
}

void Random::normal_sums(uint64_t first, int64_t count, int32_t* sums) const {
  int64_t i = 0;
#ifdef WITH_AVX2
  if (__builtin_cpu_supports("avx2"))
    for (; i + 16 <= count; i += 16)
      sixteen_sums(first + uint64_t(i), {uint32_t(hash_), uint32_t(hash_ >> 32) ^ kNormal},
                   {uint32_t(seed_), uint32_t(seed_ >> 32)}, sums + i);
#endif
  for (; i < count; ++i) {
    sums[i] = 0;
    for (const uint32_t word : block(first + uint64_t(i), kNormal))
      sums[i] += int32_t((word & 0xffff) + (word >> 16));
  }
}

std::vector<int64_t> Random::shuffle(int64_t n) const {
  std::vector<int64_t> order(static_cast<size_t>(std::max<int64_t>(n, 0)));
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  for (size_t i = order.size(); i-- > 1;) {  // Fisher-Yates
    const auto b = block(i, kShuffle);
    std::swap(order[i], order[upper_product(uint64_t{b[1]} << 32 | b[0], i + 1)]);
  }
  return order;
}

std::vector<int64_t> Random::distinct(int64_t k, int64_t n) const {
  if (k < 0 || k > n)
    throw std::invalid_argument("Random::distinct: expected 0 <= k <= n = " + std::to_string(n) +
                                ", got " + std::to_string(k));
  // The first k steps of a Fisher-Yates shuffle, over a sparse array: k may be far below n.
  std::unordered_map<int64_t, int64_t> moved;
  const auto at = [&](int64_t i) {
    const auto it = moved.find(i);
    return it == moved.end() ? i : it->second;
  };
  std::vector<int64_t> chosen;
  chosen.reserve(size_t(k));
  for (int64_t i = 0; i < k; ++i) {
    const auto b = block(uint64_t(i), kShuffle);
    const int64_t j = i + int64_t(upper_product(uint64_t{b[1]} << 32 | b[0], uint64_t(n - i)));
    chosen.push_back(at(j));
    moved[j] = at(i);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace harness
