// SPDX-License-Identifier: Apache-2.0
// The steps of qsa.topk for rows of at most kVectors vectors a thread, which stay in registers as
// keys: histograms of 11, 11 and 10 bits find the key of the k-th best score, mostly two of them;
// prefix sums of what is chosen are the places of an ascending output. No guess, no list: every
// row, also one of equal scores, takes the same steps and one or two more.
#pragma once

#include "qsa/topk_steps.h"

namespace qsa {

// Long rows take several launches: each block finds the best of a segment, and these are the next
// launch's row, as keys and columns. Rows of a launch that is not the first are in whole vectors.
struct Segments {
  const uint32_t* keys;  // [R,pitch]; 0: no column
  const int32_t* columns;
  uint32_t* best_keys;  // [R,count,places]
  int32_t* best_columns;
  int64_t pitch;
  int count, places;  // places: k, in whole vectors
};

inline constexpr uint32_t kCrowd = 512;

template <int kThreads, int kVectors>
struct ShortRow {
  // Counts of a lane's, then of a wave's scores, a field a vector.
  using Counts = std::conditional_t<device::kWave == 32, uint32_t, uint64_t>;
  static constexpr int kColumns = 4 * kThreads * kVectors, kFields = 4;
  static constexpr int kBits = int(sizeof(Counts)) * 8 / kFields;
  static_assert(kVectors <= kFields && 4 * device::kWave < 1 << kBits);

  uint32_t key[kVectors][4];  // larger for better scores; 1: NaN, 0: beyond the row

  static DEVICE_FUNCTION uint32_t column_at(int v) {
    return 4 * (uint32_t(v * kThreads) + uint32_t(device::thread()));
  }

  // From the scores; `count` columns exist.
  DEVICE_FUNCTION void take(const Pack<float> (&x)[kVectors], uint32_t count) {
    bool odd = count < uint32_t(kColumns);
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t bits = device::bit_cast<uint32_t>(x[v].x[j] + 0.0f);  // -0 becomes +0
        key[v][j] = bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
        odd = odd || device::isnan(x[v].x[j]);
      }
    }
    if (device::any(odd)) {
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        DEVICE_UNROLL
        for (int j = 0; j < 4; ++j) {
          if (device::isnan(x[v].x[j])) key[v][j] = 1;
          if (column_at(v) + uint32_t(j) >= count) key[v][j] = 0;
        }
      }
    }
  }
  // From keys; `count` columns exist, a multiple of 4.
  DEVICE_FUNCTION void load(const uint32_t* keys, uint32_t count) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Pack<uint32_t> four{};
      if (column_at(v) < count)
        four = *reinterpret_cast<const Pack<uint32_t>*>(keys + column_at(v));
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) key[v][j] = four.x[j];
    }
  }

  // Counts the keys by their upper 11 bits.
  template <class Bins>
  DEVICE_FUNCTION void count(Bins& bins) const {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) device::atomic_add(&bins[key[v][j] >> 21], 1u);
    }
  }
  // Counts the `width` keys from `low` on, by 2^shift; with `ends` the largest and the least of
  // each bin, too: not for crowds, since lanes that meet at a word wait for each other there, while
  // the hardware counts them at once.
  template <class Bins>
  DEVICE_FUNCTION void count(Bins& bins, Bins& largest, Bins& smallest, uint32_t low,
                             uint32_t width, int shift, bool ends) const {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j)
        if (const uint32_t above = key[v][j] - low; above < width) {
          const uint32_t bin = above >> shift;
          device::atomic_add(&bins[bin], 1u);
          if (ends) {
            device::atomic_max(&largest[bin], key[v][j]);
            device::atomic_min(&smallest[bin], key[v][j]);
          }
        }
    }
  }

  // For each vector the number of columns before the thread's own whose key is `low` or, unless
  // kSame, larger.
  template <bool kSame, class Totals>
  DEVICE_FUNCTION void places(Totals& totals, uint32_t low, uint32_t (&place)[kVectors]) const {
    constexpr Counts kField = (Counts{1} << kBits) - 1;
    Counts own = 0;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j)
        if (kSame ? key[v][j] == low : key[v][j] >= low) own += Counts{1} << (v * kBits);
    }
    const Counts through = wave_prefix(own);
    if (device::lane() == device::kWave - 1) totals[device::wave()] = through;
    device::sync_block();
    const Counts of_lane = device::lane() < device::waves() ? Counts(totals[device::lane()]) : 0;
    const bool lower = device::lane() < device::wave();
    uint32_t before = 0;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; v += 2) {  // two sums of 16 bits at once
      const uint32_t pair =
          uint32_t(of_lane >> (v * kBits) & kField) |
          (v + 1 < kVectors ? uint32_t(of_lane >> ((v + 1) % kFields * kBits) & kField) << 16 : 0);
      const uint32_t all = device::wave_sum(pair), below = device::wave_sum(lower ? pair : 0u);
      const Counts left = through - own;
      place[v] = before + (below & 0xffff) + uint32_t(left >> (v * kBits) & kField);
      before += all & 0xffff;
      if (v + 1 < kVectors) {
        place[v + 1] = before + (below >> 16) + uint32_t(left >> ((v + 1) * kBits) & kField);
        before += all >> 16;
      }
    }
  }
};

}  // namespace qsa
