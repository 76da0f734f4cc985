// SPDX-License-Identifier: Apache-2.0
// The steps of qsa.topk (topk.cu). All of them are reached by all threads of the block. Loops are
// kept rolled where they are not about registers: what binds is the number of instructions that a
// block's waves issue (topk.md).
//
// An entry is a score and its column in 64 bits: the larger entry wins, also among equal scores
// (the lower column), so entries are distinct and the k-th best one decides exactly.
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
template <class T>
DEVICE_FUNCTION T wave_prefix(T v) {
  DEVICE_UNROLL
  for (int step = 1; step < device::kWave; step *= 2) {
    const T lower = device::shuffle_up(v, step);
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
// the bins. With fewer entries than wanted: a count of 0. kTop: finds the topmost bin in use, too.
template <int kThreads, bool kTop = true, class Bins, class Totals, class State>
DEVICE_FUNCTION void choose_bin(Bins& bins, Totals& totals, State& state, uint32_t wanted) {
  constexpr int kOwn = kBins / kThreads;
  using Own = Pack<uint32_t, kOwn * 4 < 16 ? kOwn * 4 : 16>;
  const int low = kBins - kOwn - device::thread() * kOwn;  // the first threads have the top bins
  Own* const mine = reinterpret_cast<Own*>(device::data(bins) + low);
  uint32_t count[kOwn], own = 0;
  DEVICE_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    count[i] = mine[i / Own::kSize].x[i % Own::kSize];
    own += count[i];
  }
  DEVICE_UNROLL
  for (int i = 0; i < kOwn / Own::kSize; ++i) mine[i] = Own{};
  if (device::thread() == 0) state[kCount] = 0;
  uint32_t before = block_prefix(own, totals);
  if (own > 0 && before < wanted && (kTop || wanted - before <= own)) {
    DEVICE_UNROLL
    for (int i = kOwn - 1; i >= 0; --i) {
      if (kTop && before == 0 && count[i] > 0) state[kTopBin] = uint32_t(low + i);
      if (before < wanted && wanted <= before + count[i]) {
        state[kBin] = uint32_t(low + i);
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
  static constexpr int kBlocks = kThreads <= 256 ? 4 : 1;  // of a multiprocessor
  static constexpr int kWords = kColumns / 32;
  static constexpr int kOwnWords = kWords > kThreads ? kWords / kThreads : 1;  // of a thread
  static constexpr int kList = kColumns > 8192 ? 3584 : 2048;  // what 48 KiB of shared memory allow
  static constexpr uint32_t kListedWhole = 256;  // columns of a row that is listed without a guess

  // Column of a thread's vector v within its segment.
  static DEVICE_FUNCTION uint32_t column_at(int v) {
    return 4 * (uint32_t(v * kThreads) + uint32_t(device::thread()));
  }
  static DEVICE_FUNCTION void load(Pack<float> (&x)[kVectors], const Row& row, uint32_t base) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = row.vector_at(base + column_at(v));
  }

  // Lists k columns and some more, which hold the k best, and narrows the interval once. A count of
  // 0: the guess failed, and the interval is the whole row, or, where more columns than the list
  // holds have that score, begins with it.
  template <class List, class Bins, class Totals, class State>
  static DEVICE_FUNCTION Interval list_likely(List& list, Bins& bins, Totals& totals, State& state,
                                              Pack<float> (&x)[kVectors], const Row& row,
                                              uint32_t k) {
    Interval in{0, ~uint64_t{0}, k, 0};
    uint32_t key = 0, top = UINT32_MAX;
    const bool is_long = kLong && row.count > kColumns;
    if (row.count > kListedWhole) {
      const float share = load_sample(x, row, is_long), mean = share * float(k);
      // Four deviations of the count of the k best in the sample, and some: fails once in 10^5.
      const uint32_t rank = uint32_t(mean + 4 * device::sqrt(mean)) + 8;
      uint32_t low = 0, wanted = rank;
      DEVICE_ROLLED
      for (int shift = kSampleShift;; shift = shift > 11 ? shift - 11 : 0) {
        count_sample(bins, x, row, is_long, low, shift);
        device::sync_block();
        choose_bin<kThreads>(bins, totals, state, wanted);
        if (state[kCount] == 0) break;
        if (low == 0) top = (state[kTopBin] << shift) | ((1u << shift) - 1);
        low += state[kBin] << shift;
        wanted = state[kWanted];
        if (low > kKeyOfMinusInfinity) key = low;  // the bins below hold the NaN
        // The sample's scores from there on: too many where they crowd in one bin.
        const uint32_t reached = rank - wanted + state[kCount];
        if (shift == 0 || (reached <= 2 * rank && float(reached) <= share * (0.85f * kList))) break;
      }
    }
    if (is_long) {
      for (uint32_t base = 0; base < row.count; base += kColumns) {
        load(x, row, base);
        append(list, state, x, row, base, key);
      }
    } else {
      append(list, state, x, row, 0, key);
    }
    if (const uint32_t c = row.tail() + uint32_t(device::thread()); c < row.count)
      if (const uint32_t at = device::atomic_add(&state[kListed], 1u); at < kList) list[at] = c;
    device::sync_block();
    const uint32_t listed = state[kListed];
    if (listed > kList) {
      if (listed >= k + 3) in.low = uint64_t{key} << 32;  // 3 of the tail may be below
      return in;
    }

    const int shift = shift_for(top - key);
    DEVICE_ROLLED
    for (uint32_t from = uint32_t(device::thread()); from < listed; from += kAtOnce * kThreads) {
      uint32_t column[kAtOnce];
      float score[kAtOnce];
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + uint32_t(i * kThreads);
        column[i] = at < listed ? uint32_t(list[at]) : 0;
        score[i] = row.at(column[i]);
      }
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + uint32_t(i * kThreads);
        if (at >= listed) continue;
        const uint32_t own = key_of(score[i]), bin = (own - key) >> shift;
        list[at] = uint64_t{own} << 32 | (UINT32_MAX - column[i]);
        if (own >= key) device::atomic_add(&bins[bin < kBins ? bin : kBins - 1], 1u);
      }
    }
    device::sync_block();
    choose_bin<kThreads>(bins, totals, state, k);
    if (state[kCount] == 0) return in;
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
                                     Bitmap& bitmap, const Row& row, Interval& in) {
    bool from_list = in.count > 0;
    if (!from_list) in.count = row.count;
    for (;;) {
      if (from_list && (in.count <= kFew || in.count == in.wanted)) return;
      const bool collect = !from_list && in.count <= kList;
      if (collect) {
        if (device::thread() == 0) state[kListed] = 0;
        device::sync_block();
      }
      if (in.low >> 32 == in.high >> 32) {  // one score: the columns of the row are left
        const uint64_t least = (in.low >> 32 << 32) + (UINT32_MAX - (row.count - 1));
        if (in.low < least) in.low = least;
      }
      const int shift = shift_for(in.high - in.low);
      const uint32_t entries = from_list ? uint32_t(state[kListed]) : row.count;
      DEVICE_ROLLED
      for (uint32_t from = uint32_t(device::thread()); from < entries; from += kAtOnce * kThreads) {
        uint64_t entry[kAtOnce];
        DEVICE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const uint32_t at = from + uint32_t(i * kThreads);
          entry[i] = at >= entries ? 0 : from_list ? uint64_t(list[at]) : entry_of(row.at(at), at);
        }
        DEVICE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const uint32_t at = from + uint32_t(i * kThreads);
          if (at >= entries || entry[i] < in.low) continue;
          if (entry[i] > in.high) {
            if (collect) mark(bitmap, at);
          } else if (collect) {
            list[device::atomic_add(&state[kListed], 1u)] = entry[i];
          } else {
            device::atomic_add(&bins[uint32_t((entry[i] - in.low) >> shift)], 1u);
          }
        }
      }
      device::sync_block();
      if (collect) {
        from_list = true;
        continue;
      }
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
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        // Most scores are below the least chosen one, and NaN is seldom chosen.
        if (x[v].x[j] < score) continue;
        const uint32_t column = column_at(v) + uint32_t(j);
        if (base + column < row.tail() && entry_of(x[v].x[j], base + column) >= least)
          mark(bitmap, column);
      }
    }
    if (const uint32_t c = row.tail() + uint32_t(device::thread());
        c < row.count && c >= base && c - base < kColumns && entry_of(row.at(c), c) >= least)
      mark(bitmap, c - base);
    device::sync_block();
  }

  // Counts the marked columns below each word of the bitmap, from `first` on. Returns the next
  // segment's first rank.
  template <class Bitmap, class Ranks, class Totals>
  static DEVICE_FUNCTION uint32_t rank_words(Bitmap& bitmap, Ranks& ranks, Totals& totals,
                                             uint32_t first) {
    const int from = device::thread() * kOwnWords;
    uint32_t count[kOwnWords], own = 0;
    DEVICE_UNROLL
    for (int i = 0; i < kOwnWords; ++i) {
      count[i] = from < kWords ? uint32_t(device::popcount(bitmap[from + i])) : 0;
      own += count[i];
    }
    uint32_t rank = first + block_prefix(own, totals);
    DEVICE_UNROLL
    for (int i = 0; i < kOwnWords; ++i) {
      if (from < kWords) ranks[from + i] = rank;
      rank += count[i];
    }
    if (kLong)
      for (int w = 0; w < device::waves(); ++w) first += totals[w];
    device::sync_block();
    return first;
  }
  template <class Bitmap, class Ranks>
  static DEVICE_FUNCTION uint32_t rank_of(Bitmap& bitmap, Ranks& ranks, uint32_t column) {
    const uint32_t below = bitmap[column / 32] & ((uint32_t{1} << column % 32) - 1);
    return ranks[column / 32] + uint32_t(device::popcount(below));
  }
  // Calls use(rank, column) for the marked columns.
  template <class Bitmap, class Ranks, class Use>
  static DEVICE_FUNCTION void for_each_marked(Bitmap& bitmap, Ranks& ranks, const Use& use) {
    DEVICE_ROLLED
    for (int w = device::thread(); w < kWords; w += kThreads) {
      uint32_t rank = ranks[w];
      DEVICE_ROLLED
      for (uint32_t b = bitmap[w]; b; b &= b - 1)
        use(rank++, uint32_t(w * 32 + device::first_lane(b)));
    }
  }

 private:
  static constexpr int kSampleShift = 21;
  // A sample takes one score of so many vectors; of long rows four scores of each vector.
  static constexpr int kSampleEvery = kLong || kVectors < 4 ? 1 : kVectors > 8 ? 4 : 2;
  static constexpr int kSampled = kLong ? 4 : 1;
  static constexpr int kAtOnce = 4;  // scores whose loads are under way together

  // Returns the sample's share of the row. Of a row that is longer than the registers, vectors all
  // over it are loaded.
  static DEVICE_FUNCTION float load_sample(Pack<float> (&x)[kVectors], const Row& row,
                                           bool is_long) {
    constexpr float kShare = 0.25f * kSampled / kSampleEvery;
    if (!is_long) return kShare;
    const uint32_t apart = row.count / kColumns;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = row.vector_at(column_at(v) * apart);
    return device::divide(kShare * kColumns, float(row.count));
  }

  // Counts the keys of the sample that the bins from `low` on reach.
  template <class Bins>
  static DEVICE_FUNCTION void count_sample(Bins& bins, const Pack<float> (&x)[kVectors],
                                           const Row& row, bool is_long, uint32_t low, int shift) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; v += kSampleEvery) {
      DEVICE_UNROLL
      for (int i = 0; i < kSampled; ++i) {
        // Which of the four is a hash of the place: scores may have a period.
        const uint32_t hash = uint32_t(v * kThreads + device::thread()) * 0x9e3779b1u >> 30;
        const uint32_t j = kSampled == 1 ? hash : uint32_t(i);
        const float first = j & 1 ? x[v].x[1] : x[v].x[0], last = j & 1 ? x[v].x[3] : x[v].x[2];
        // NaN counts as -inf, and both zeros are equal.
        const float score = device::max(j & 2 ? last : first, -device::infinity()) + 0.0f;
        const uint32_t bits = device::bit_cast<uint32_t>(score);
        const uint32_t key = bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
        const uint32_t bin = (key - low) >> shift;
        if (bin < kBins && (is_long || column_at(v) + j < row.count))
          device::atomic_add(&bins[bin], 1u);
      }
    }
  }

  // Lists the columns of a segment whose key is at least `key`; 0: all of them.
  template <class List, class State>
  static DEVICE_FUNCTION void append(List& list, State& state, const Pack<float> (&x)[kVectors],
                                     const Row& row, uint32_t base, uint32_t key) {
    constexpr int kInWord = kVectors < 8 ? kVectors : 8;  // vectors, four bits each
    constexpr int kHits = kVectors / kInWord;
    const float least = score_of(key);
    const uint32_t end = row.count < row.tail() ? row.count : row.tail();
    const bool ends = base + kColumns > end;
    uint32_t hits[kHits], own = 0;
    DEVICE_UNROLL
    for (int h = 0; h < kHits; ++h) {
      hits[h] = 0;
      DEVICE_UNROLL
      for (int b = 0; b < 4 * kInWord; ++b)
        if (x[h * kInWord + b / 4].x[b % 4] >= least) hits[h] |= uint32_t{1} << b;
      if (key == 0) hits[h] = ~uint32_t{0} >> (32 - 4 * kInWord);
      if (ends) {  // columns beyond the row, and such as were loaded too early
        DEVICE_UNROLL
        for (int v = 0; v < kInWord; ++v) {
          const int32_t left = int32_t(end - (base + column_at(h * kInWord + v)));
          if (left < 4) hits[h] &= ~((left > 0 ? (15u << left) & 15u : 15u) << (4 * v));
        }
      }
      own += uint32_t(device::popcount(hits[h]));
    }
    const uint32_t through = wave_prefix(own);
    uint32_t at = 0;
    if (device::lane() == device::kWave - 1) at = device::atomic_add(&state[kListed], through);
    at = device::shuffle(at, device::kWave - 1) + through - own;
    if (at + own > kList) return;  // the count tells that the list has overflowed
    const uint32_t first = base + 4 * uint32_t(device::thread());
    DEVICE_UNROLL
    for (int h = 0; h < kHits; ++h) {
      DEVICE_ROLLED
      for (uint32_t b = hits[h]; b; b &= b - 1) {
        const uint32_t bit = uint32_t(device::first_lane(b));
        list[at++] = first + (uint32_t(h * kInWord) + bit / 4) * (4 * kThreads) + bit % 4;
      }
    }
  }
};

}  // namespace qsa
