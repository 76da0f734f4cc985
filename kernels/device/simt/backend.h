// SPDX-License-Identifier: Apache-2.0
// The dialect on the host: every lane is a fiber of the executor. Meanings: device/dialect.md.
// SIMT_WAVE (32 or 64) is the wave width this source is compiled for.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shared_array.h"

#define DEVICE_KERNEL(max_threads) void
#define DEVICE_KERNEL_BLOCKS(max_threads, blocks_of_a_processor) void
#define DEVICE_FUNCTION inline
#define DEVICE_UNROLL
#define DEVICE_ROLLED
#define DEVICE_SHARED(type, name, count)  \
  static const char name##_declaration{}; \
  const ::simt::SharedArray<type> name =  \
      ::simt::static_shared_array<type>(&name##_declaration, #name, static_cast<size_t>(count))
#define DEVICE_DYNAMIC_SHARED(type, name) \
  const ::simt::SharedArray<type> name = ::simt::dynamic_shared_array<type>(#name)
// collectives.h hands the caller's place through with these.
#define DEVICE_SITE_PARAMETER , ::simt::Site site = ::simt::Site::current()
#define DEVICE_SITE , site
#define DEVICE_SITE_ALONE site

namespace device {

using simt::Site;

template <class T>
T* data(const simt::SharedArray<T>& array) {
  return array.data();
}

// Indices.
inline constexpr int kWave = SIMT_WAVE;
static_assert(kWave == 32 || kWave == 64, "SIMT_WAVE is 32 or 64");
inline int thread() { return simt::current->thread; }
inline int threads() { return simt::current->block->threads; }
inline int block_x() { return simt::current->block->x; }
inline int block_y() { return simt::current->block->y; }
inline int block_z() { return simt::current->block->z; }
inline int blocks_x() { return simt::current->block->blocks_x; }
inline int blocks_y() { return simt::current->block->blocks_y; }
inline int blocks_z() { return simt::current->block->blocks_z; }
inline int lane() { return simt::current->lane; }
inline int wave() { return simt::current->wave; }
inline int waves() { return threads() / kWave; }

// Barriers.
inline void sync_block(Site site = Site::current()) { simt::sync_block(site); }
inline void sync_wave(Site site = Site::current()) { simt::sync_wave(site); }
inline void fence() { simt::fence(); }
inline void wait_for_previous() {}
inline void allow_next() {}

// Bits.
using std::bit_cast;
template <class T>
T load(const void* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Shuffles. (Calls that hand a Site on are qualified: it would bring std::shuffle into the choice.)
template <class T>
concept Shuffled = (sizeof(T) == 4 || sizeof(T) == 8) && std::is_trivially_copyable_v<T>;

template <Shuffled T>
T shuffle(T v, int source_lane, Site site = Site::current()) {
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  bits = simt::shuffle(bits, source_lane, site);
  std::memcpy(&v, &bits, sizeof(T));
  return v;
}
template <Shuffled T>
T shuffle_xor(T v, int mask, Site site = Site::current()) {
  return device::shuffle(v, lane() ^ mask, site);
}
template <Shuffled T>
T shuffle_up(T v, int delta, Site site = Site::current()) {
  return device::shuffle(v, lane() - delta >= 0 ? lane() - delta : lane(), site);
}
template <Shuffled T>
T shuffle_down(T v, int delta, Site site = Site::current()) {
  return device::shuffle(v, lane() + delta < kWave ? lane() + delta : lane(), site);
}

// A reduction in one meeting of the lanes: their values are combined in the same order as by
// shuffle_xor, so that the bits are the same. Used by collectives.h.
#define DEVICE_WAVE_REDUCE
template <Shuffled T, class Combine>
T wave_reduce(T v, Combine, Site site) {
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  bits = simt::reduce(
      bits,
      [](uint64_t* lanes) {
        T now[kWave], next[kWave];
        for (int l = 0; l < kWave; ++l) std::memcpy(&now[l], &lanes[l], sizeof(T));
        for (int mask = kWave / 2; mask > 0; mask /= 2) {
          for (int l = 0; l < kWave; ++l) next[l] = Combine()(now[l], now[l ^ mask]);
          std::copy(next, next + kWave, now);
        }
        for (int l = 0; l < kWave; ++l) std::memcpy(&lanes[l], &now[l], sizeof(T));
      },
      site);
  std::memcpy(&v, &bits, sizeof(T));
  return v;
}

// Votes.
using LaneMask = std::conditional_t<kWave == 32, uint32_t, uint64_t>;
inline LaneMask ballot(bool b, Site site = Site::current()) {
  return static_cast<LaneMask>(simt::ballot(b, site));
}
inline int popcount(LaneMask m) { return std::popcount(m); }
inline int first_lane(LaneMask m) { return m ? std::countr_zero(m) : -1; }
inline LaneMask lanes_below() { return (LaneMask{1} << lane()) - 1; }
inline bool any(bool b, Site site = Site::current()) { return ballot(b, site) != 0; }
inline bool all(bool b, Site site = Site::current()) { return ballot(!b, site) == 0; }

// Atomics: relaxed, so that they order nothing else.
template <class T>
concept Atomic = std::same_as<T, int32_t> || std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;
template <class T, class Change>
T atomic_change(T* p, Change change) {
  std::atomic_ref<T> ref(*p);
  T old = ref.load(std::memory_order_relaxed);
  while (!ref.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}
template <Atomic T>
T atomic_add(T* p, std::type_identity_t<T> v) {
  return std::atomic_ref<T>(*p).fetch_add(v, std::memory_order_relaxed);
}
inline float atomic_add(float* p, float v) {
  return atomic_change(p, [v](float old) { return old + v; });
}
template <Atomic T>
T atomic_max(T* p, std::type_identity_t<T> v) {
  return atomic_change(p, [v](T old) { return std::max(old, v); });
}
template <Atomic T>
T atomic_min(T* p, std::type_identity_t<T> v) {
  return atomic_change(p, [v](T old) { return std::min(old, v); });
}
template <Atomic T>
T atomic_or(T* p, std::type_identity_t<T> v) {
  return std::atomic_ref<T>(*p).fetch_or(v, std::memory_order_relaxed);
}
template <Atomic T>
T atomic_exchange(T* p, std::type_identity_t<T> v) {
  return std::atomic_ref<T>(*p).exchange(v, std::memory_order_relaxed);
}
template <Atomic T>
T atomic_cas(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}

// Asynchronous copies: the target is 0xff until a wait covers the copy; only then is the source read.
inline void copy_async16(void* shared, const void* global, bool valid,
                         Site site = Site::current()) {
  simt::begin_copy({shared, valid ? global : nullptr}, site);
  const uint64_t poison[2] = {~uint64_t{0}, ~uint64_t{0}};
  std::memcpy(shared, poison, 16);
}
inline void copy_async_commit() { simt::commit_copies(); }
template <int N>
void copy_async_wait() {
  size_t count = 0;
  const simt::Copy* copies = simt::take_copies(N, &count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bytes[2] = {0, 0};
    if (copies[i].from) std::memcpy(bytes, copies[i].from, 16);
    std::memcpy(copies[i].to, bytes, 16);
  }
}

// Math.
inline float exp2(float x) { return std::exp2(x); }
inline float exp(float x) { return std::exp(x); }
inline float log2(float x) { return std::log2(x); }
inline float log(float x) { return std::log(x); }
inline float sqrt(float x) { return std::sqrt(x); }
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float divide(float a, float b) { return a / b; }
inline float abs(float x) { return std::fabs(x); }
inline float floor(float x) { return std::floor(x); }
inline bool isnan(float x) { return x != x; }
inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float nan() { return std::numeric_limits<float>::quiet_NaN(); }
// Not std::fmin: it answers a signalling NaN (a bf16 such as 0x7f81 becomes one) with NaN, where
// GPUs give the other.
inline float min(float a, float b) { return isnan(a) || b < a ? b : a; }
inline float max(float a, float b) { return isnan(a) || a < b ? b : a; }
template <std::integral T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <std::integral T>
T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace device

#include "mma.h"
