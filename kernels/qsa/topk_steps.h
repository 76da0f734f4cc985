// SPDX-License-Identifier: Apache-2.0
// The steps of qsa.topk (topk.cu). All of them are reached by all threads of the block. The code is
// kept small on purpose: at decode sizes a block runs once through it, and fetching instructions
// costs more than executing them (topk.md).
//
// An entry is a score and its column in 64 bits: the larger entry wins, also among equal scores (the
// lower column), so entries are distinct and the k-th best one decides exactly.
#pragma once

#include "qsa/common.h"

namespace qsa {

inline constexpr int kBins = 2048, kFew = 64, kMaxWaves = 32;
// Shared words that the block's threads tell each other.
inline constexpr int kBin = 0, kWanted = 1, kCount = 2, kTopBin = 3, kListed = 4, kFewListed = 5,
                     kStates = 6;

// Larger score, larger key; NaN below -inf, both zeros equal.
DEVICE_FUNCTION uint32_t key_of(float score) {
  const uint32_t bits = device::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
  if (device::isnan(score)) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline constexpr uint32_t kKeyOfMinusInfinity = 0x007fffffu;

DEVICE_FUNCTION float score_of(uint32_t key) {
  return device::bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEVICE_FUNCTION uint64_t entry_of(float score, uint32_t column) {
  return uint64_t{key_of(score)} << 32 | (UINT32_MAX - column);
}
DEVICE_FUNCTION uint32_t column_of(uint64_t entry) { return UINT32_MAX - uint32_t(entry); }

// The entries from low to high, both included: `count` of the row, of which the `wanted` best are
// chosen; everything above is, everything below is not.
struct Interval {
  uint64_t low, high;
  uint32_t wanted, count;
};

// Inclusive sum over the lower lanes.
DEVICE_FUNCTION uint32_t wave_prefix(uint32_t v) {
  DEVICE_UNROLL
  for (int step = 1; step < device::kWave; step *= 2) {
    const uint32_t lower = device::shuffle_up(v, step);
    if (device::lane() >= step) v += lower;
  }
  return v;
}

// Sum over the lower threads. The totals are free once every thread has passed another barrier.
template <class Totals>
DEVICE_FUNCTION uint32_t block_prefix(uint32_t own, Totals& totals) {
  const uint32_t through = wave_prefix(own);
  if (device::lane() == device::kWave - 1) totals[device::wave()] = through;
  device::sync_block();
  const uint32_t lower =
      device::wave_sum(device::lane() < device::wave() ? uint32_t(totals[device::lane()]) : 0u);
  return lower + through - own;
}

// Finds the bin of the wanted-th entry from the top and how many are still wanted in it, and clears
// the bins. With fewer entries than wanted: a count of 0.
template <int kThreads, class Bins, class Totals, class State>
DEVICE_FUNCTION void choose_bin(Bins& bins, Totals& totals, State& state, uint32_t wanted) {
  constexpr int kOwn = kBins / kThreads;
  const int top = kBins - 1 - device::thread() * kOwn;
  uint32_t count[kOwn], own = 0;
  DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    count[i] = bins[top - i];
    bins[top - i] = 0;
    own += count[i];
  }
  if (device::thread() == 0) state[kCount] = 0;
  uint32_t before = block_prefix(own, totals);
  if (own > 0 && before < wanted) {
    const bool first = before == 0;
    bool found = false;
    DEVICE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      if (first && before == 0 && count[i] > 0) state[kTopBin] = uint32_t(top - i);
      if (!found && wanted <= before + count[i]) {
        found = true;
        state[kBin] = uint32_t(top - i);
        state[kWanted] = wanted - before;
        state[kCount] = count[i];
      }
      before += count[i];
    }
  }
  device::sync_block();
}

// The least shift that brings the width below the number of bins.
template <class Word>
DEVICE_FUNCTION int shift_for(Word width) {
  int shift = 0;
  DEVICE_UNROLL
  for (int step = int(sizeof(Word)) * 4; step > 0; step /= 2)
    if (width >> (shift + step - 1) >= Word{kBins}) shift += step;
  return shift;
}

// A row of scores. kDense: without gaps, and every fourth column is at a multiple of 16 bytes.
template <bool kDense>
struct TopkRow {
  const float* scores;
  int64_t stride;
  uint32_t count;   // columns that may be chosen
  uint32_t loaded;  // columns that are read into the registers

  DEVICE_FUNCTION float at(uint32_t column) const {
    return kDense ? scores[column] : scores[column * stride];
  }
  // Vectors that are not whole are left out (NaN); `tail` is the first column of those.
  DEVICE_FUNCTION Pack<float> vector_at(uint32_t column) const {
    Pack<float> v{{device::nan(), device::nan(), device::nan(), device::nan()}};
    if (column >= tail()) return v;
    if constexpr (kDense) {
      v = *reinterpret_cast<const Pack<float>*>(scores + column);
    } else {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) v.x[j] = at(column + uint32_t(j));
    }
    return v;
  }
  DEVICE_FUNCTION uint32_t tail() const { return loaded / 4 * 4; }
};

// What depends on the size of the block: kVectors vectors of four scores a thread are a segment.
// kLong: rows may have more columns than that.
template <int kThreads, int kVectors, bool kDense, bool kLong>
struct TopkShape {
  using Row = TopkRow<kDense>;
  static constexpr int kColumns = 4 * kThreads * kVectors;
  static constexpr int kWords = kColumns / 32;
  static constexpr int kList = kThreads == 1024 ? 4096 : 2048;
  static constexpr uint32_t kListedWhole = 2048;  // rows of so many columns are listed without a guess
  static_assert(kVectors <= 8, "a thread's columns fit 32 bits");

  // Column of a thread's vector v within its segment.
  static DEVICE_FUNCTION uint32_t column_at(int v) {
    return 4 * (uint32_t(v * kThreads) + uint32_t(device::thread()));
  }
  static DEVICE_FUNCTION void load(Pack<float> (&x)[kVectors], const Row& row, uint32_t base) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = row.vector_at(base + column_at(v));
  }

  // Lists k columns and some more, which hold the k best, and narrows the interval once. A count of
  // 0: the guess failed.
  template <class List, class Bins, class Totals, class State>
  static DEVICE_FUNCTION Interval list_likely(List& list, Bins& bins, Totals& totals, State& state,
                                              Pack<float> (&x)[kVectors], const Row& row,
                                              uint32_t k) {
    Interval in{0, ~uint64_t{0}, k, 0};
    uint32_t key = 0, top = UINT32_MAX;
    const bool whole = row.count <= kListedWhole, is_long = kLong && row.count > kColumns;
    if (!whole) {
      const float mean = sample(bins, x, row, is_long) * float(k);
      // Four deviations of the count of the k best in the sample, and some: fails once in 10^5.
      const uint32_t rank = uint32_t(mean + 4 * device::sqrt(mean)) + 8;
      device::sync_block();
      choose_bin<kThreads>(bins, totals, state, rank);
      key = state[kBin] << kSampleShift;
      top = (state[kTopBin] << kSampleShift) | ((1u << kSampleShift) - 1);
      if (state[kCount] == 0 || key <= kKeyOfMinusInfinity) return in;
    }
    for (uint32_t base = 0; base < row.count; base += kColumns) {
      if (is_long) load(x, row, base);
      append(list, state, x, row, base, whole, score_of(key));
    }
    if (const uint32_t c = row.tail() + uint32_t(device::thread()); c < row.count)
      if (const uint32_t at = device::atomic_add(&state[kListed], 1u); at < kList) list[at] = c;
    device::sync_block();
    const uint32_t listed = state[kListed];
    if (listed > kList) return in;

    const int shift = shift_for(top - key);
    DEVICE_ROLLED
    for (uint32_t i = uint32_t(device::thread()); i < listed; i += kThreads) {
      const uint32_t column = uint32_t(list[i]), own = key_of(row.at(column));
      list[i] = uint64_t{own} << 32 | (UINT32_MAX - column);
      const uint32_t bin = (own - key) >> shift;
      if (own >= key) device::atomic_add(&bins[bin < kBins ? bin : kBins - 1], 1u);
    }
    device::sync_block();
    choose_bin<kThreads>(bins, totals, state, k);
    const uint32_t bin = state[kBin];
    in.low = ((uint64_t{bin} << shift) + key) << 32;
    if (bin < kBins - 1) in.high = (((uint64_t{bin + 1} << shift) + key) << 32) - 1;
    in.wanted = state[kWanted];
    in.count = state[kCount];
    return in;
  }

  // Narrows the interval until few entries are left: by the list if it is one, else by reading the
  // row again and again until what is left fits the list. Marks what is above then.
  template <class List, class Bins, class Totals, class State, class Bitmap>
  static DEVICE_FUNCTION void narrow(List& list, Bins& bins, Totals& totals, State& state,
                                     Bitmap& bitmap, const Row& row, uint32_t k, Interval& in) {
    bool from_list = in.count > 0;
    if (!from_list) in = {0, ~uint64_t{0}, k, row.count};
    for (;;) {
      const uint32_t share = uint32_t(device::thread());
      if (!from_list && in.count <= kList) {
        if (device::thread() == 0) state[kListed] = 0;
        device::sync_block();
        DEVICE_ROLLED
        for (uint32_t c = share; c < row.count; c += kThreads) {
          const uint64_t entry = entry_of(row.at(c), c);
          if (entry > in.high)
            mark(bitmap, c);
          else if (entry >= in.low)
            list[device::atomic_add(&state[kListed], 1u)] = entry;
        }
        device::sync_block();
        from_list = true;
      }
      if (from_list && in.count <= kFew) return;
      if (in.low >> 32 == in.high >> 32) {  // one score: the columns of the row are left
        const uint64_t least = (in.low >> 32 << 32) + (UINT32_MAX - (row.count - 1));
        if (in.low < least) in.low = least;
      }
      const int shift = shift_for(in.high - in.low);
      const uint32_t entries = from_list ? uint32_t(state[kListed]) : row.count;
      DEVICE_ROLLED
      for (uint32_t i = share; i < entries; i += kThreads) {
        const uint64_t entry = from_list ? uint64_t(list[i]) : entry_of(row.at(i), i);
        if (entry >= in.low && entry <= in.high)
          device::atomic_add(&bins[uint32_t((entry - in.low) >> shift)], 1u);
      }
      device::sync_block();
      choose_bin<kThreads>(bins, totals, state, in.wanted);
      in.low += uint64_t{state[kBin]} << shift;
      const uint64_t last = in.low + ((uint64_t{1} << shift) - 1);
      if (last < in.high) in.high = last;
      in.wanted = state[kWanted];
      in.count = state[kCount];
    }
  }

  // Columns beyond the segment are marked later, segment by segment.
  template <class Bitmap>
  static DEVICE_FUNCTION void mark(Bitmap& bitmap, uint32_t column) {
    if (!kLong || column < kColumns)
      device::atomic_or(&bitmap[column / 32], uint32_t{1} << column % 32);
  }

  // Marks a segment of a long row anew: all entries from `least` on.
  template <class Bitmap>
  static DEVICE_FUNCTION void mark_segment(Bitmap& bitmap, const Row& row, uint32_t base,
                                           uint64_t least) {
    device::sync_block();
    for (int i = device::thread(); i < kWords; i += kThreads) bitmap[i] = 0;
    device::sync_block();
    const float score = score_of(uint32_t(least >> 32));
    Pack<float> x[kVectors];
    load(x, row, base);
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        // Most scores are below the least chosen one, and NaN is seldom chosen.
        if (x[v].x[j] < score) continue;
        const uint32_t column = column_at(v) + uint32_t(j);
        if (base + column < row.tail() && entry_of(x[v].x[j], base + column) >= least)
          mark(bitmap, column);
      }
    if (const uint32_t c = row.tail() + uint32_t(device::thread());
        c < row.count && c >= base && c - base < kColumns && entry_of(row.at(c), c) >= least)
      mark(bitmap, c - base);
    device::sync_block();
  }

  // Calls use(rank, column) for the marked columns, which are ranked from `first` on. Returns the
  // next segment's first rank.
  template <class Bitmap, class Totals, class Use>
  static DEVICE_FUNCTION uint32_t for_each_marked(Bitmap& bitmap, Totals& totals, uint32_t first,
                                                  const Use& use) {
    constexpr int kBits = 4 * kVectors;  // a thread's
    const int from = device::thread() * kBits;
    uint32_t bits = bitmap[from / 32] >> from % 32;
    if (kBits < 32) bits &= (uint32_t{1} << kBits % 32) - 1;
    uint32_t rank = first + block_prefix(uint32_t(device::popcount(bits)), totals);
    DEVICE_ROLLED
    for (; bits; bits &= bits - 1) use(rank++, uint32_t(from + device::first_lane(bits)));
    if (kLong)
      for (int w = 0; w < device::waves(); ++w) first += totals[w];
    return first;
  }

 private:
  static constexpr int kSampleShift = 21;

  template <class Bins>
  static DEVICE_FUNCTION void count(Bins& bins, float score) {
    const float number = device::max(score, -device::infinity()) + 0.0f;  // NaN counts as -inf
    const uint32_t bits = device::bit_cast<uint32_t>(number);
    const uint32_t flip = uint32_t(int32_t(bits) >> 31) | 0x80000000u;
    device::atomic_add(&bins[(bits ^ flip) >> kSampleShift], 1u);
  }

  // Counts the keys of a sample and returns its share of the row: one score of each vector, or, of a
  // row that is longer than the registers, vectors all over it.
  template <class Bins>
  static DEVICE_FUNCTION float sample(Bins& bins, Pack<float> (&x)[kVectors], const Row& row,
                                      bool is_long) {
    if (is_long) {
      const uint32_t apart = row.count / kColumns;
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v) x[v] = row.vector_at(column_at(v) * apart);
    }
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      // Which of the four is a hash of the place: scores may have a period.
      const uint32_t j = uint32_t(v * kThreads + device::thread()) * 0x9e3779b1u >> 30;
      const float low = j & 1 ? x[v].x[1] : x[v].x[0], high = j & 1 ? x[v].x[3] : x[v].x[2];
      if (is_long || column_at(v) + j < row.count) count(bins, j & 2 ? high : low);
    }
    return is_long ? device::divide(float(kColumns / 4), float(row.count)) : 0.25f;
  }

  // Lists the columns of a segment whose score is at least `least`, or all of them.
  template <class List, class State>
  static DEVICE_FUNCTION void append(List& list, State& state, const Pack<float> (&x)[kVectors],
                                     const Row& row, uint32_t base, bool all, float least) {
    uint32_t hits = 0;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j)
        if (x[v].x[j] >= least) hits |= uint32_t{1} << (4 * v + j);
    if (all) hits = ~uint32_t{0} >> (32 - 4 * kVectors);
    const uint32_t end = row.count < row.tail() ? row.count : row.tail();
    if (base + kColumns > end) {  // columns beyond the row, and such as were loaded too early
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int32_t left = int32_t(end - (base + column_at(v)));
        if (left < 4) hits &= ~((left > 0 ? (15u << left) & 15u : 15u) << (4 * v));
      }
    }
    const uint32_t own = uint32_t(device::popcount(hits)), through = wave_prefix(own);
    uint32_t at = 0;
    if (device::lane() == device::kWave - 1) at = device::atomic_add(&state[kListed], through);
    at = device::shuffle(at, device::kWave - 1) + through - own;
    if (at + own > kList) return;  // the count tells that the list has overflowed
    DEVICE_ROLLED
    for (; hits; hits &= hits - 1) {
      const uint32_t bit = uint32_t(device::first_lane(hits));
      list[at++] = base + bit / 4 * (4 * kThreads) + 4 * uint32_t(device::thread()) + bit % 4;
    }
  }
};

}  // namespace qsa
