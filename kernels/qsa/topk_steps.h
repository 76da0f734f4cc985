// SPDX-License-Identifier: Apache-2.0
// The steps of qsa.topk (topk.cu). All of them are reached by all threads of the block.
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
  if (device::isnan(score)) return 0;
  const uint32_t bits = device::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline constexpr uint32_t kKeyOfMinusInfinity = 0x007fffffu;

DEVICE_FUNCTION float score_of(uint32_t key) {
  return device::bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEVICE_FUNCTION uint64_t entry_of(float score, int64_t column) {
  return uint64_t{key_of(score)} << 32 | (UINT32_MAX - uint32_t(column));
}
DEVICE_FUNCTION uint32_t column_of(uint64_t entry) { return UINT32_MAX - uint32_t(entry); }

struct TopkRow {
  const float* scores;
  int64_t stride, count;
  bool aligned;  // dense, and every fourth column is at a multiple of 16 bytes
};

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
// the bins. With fewer entries than wanted: bin 0 with a count of 0.
template <class Bins, class Totals, class State>
DEVICE_FUNCTION void choose_bin(Bins& bins, Totals& totals, State& state, uint32_t wanted) {
  const int per_thread = kBins / device::threads();
  const int top = kBins - 1 - device::thread() * per_thread;
  uint32_t own = 0;
  for (int i = 0; i < per_thread; ++i) own += bins[top - i];
  if (device::thread() == 0) state[kBin] = state[kCount] = 0;
  uint32_t before = block_prefix(own, totals);
  const bool holds = before < wanted && wanted <= before + own, first = before == 0 && own > 0;
  for (int i = 0; i < per_thread; ++i) {
    const uint32_t here = bins[top - i];
    if (holds && before < wanted && wanted <= before + here) {
      state[kBin] = uint32_t(top - i);
      state[kWanted] = wanted - before;
      state[kCount] = here;
    }
    if (first && before == 0 && here > 0) state[kTopBin] = uint32_t(top - i);
    before += here;
    bins[top - i] = 0;
  }
  device::sync_block();
}

// The least shift that brings the width below the number of bins.
DEVICE_FUNCTION int shift_for(uint64_t width) {
  int shift = 0;
  DEVICE_UNROLL
  for (int step = 32; step > 0; step /= 2)
    if (width >> (shift + step - 1) >= kBins) shift += step;
  return shift;
}

// Narrows the interval to the bin of its wanted-th entry. `source(use)` calls use(entry) for this
// thread's share of entries. The bins divide low ... top; entries above are counted in the last.
template <class Bins, class Totals, class State, class Source>
DEVICE_FUNCTION void narrow(Bins& bins, Totals& totals, State& state, Interval& in, uint64_t top,
                            const TopkRow& row, const Source& source) {
  const int shift = shift_for(top - in.low);
  source([&](uint64_t entry) {
    if (entry < in.low || entry > in.high) return;
    const uint64_t bin = (entry - in.low) >> shift;
    device::atomic_add(&bins[bin < kBins ? bin : kBins - 1], 1u);
  });
  device::sync_block();
  choose_bin(bins, totals, state, in.wanted);
  const uint64_t bin = state[kBin];
  in.low += bin << shift;
  const uint64_t last = in.low + ((uint64_t{1} << shift) - 1);
  if (bin < kBins - 1 && last < in.high) in.high = last;
  in.wanted = state[kWanted];
  in.count = state[kCount];
  // Within one score, the columns of the row alone.
  if (in.low >> 32 == in.high >> 32) {
    const uint64_t least = (in.low >> 32 << 32) + UINT32_MAX - uint32_t(row.count - 1);
    if (in.low < least) in.low = least;
  }
}
template <class Bins, class Totals, class State, class Source>
DEVICE_FUNCTION void narrow(Bins& bins, Totals& totals, State& state, Interval& in,
                            const TopkRow& row, const Source& source) {
  narrow(bins, totals, state, in, in.high, row, source);
}

// What depends on the size of the block: kVectors vectors of four scores a thread are a segment.
template <int kThreads, int kVectors>
struct TopkShape {
  static constexpr int kColumns = 4 * kThreads * kVectors;
  static constexpr int kWords = kColumns / 32;
  static constexpr int kList = kThreads == 1024 ? 4096 : 2048;
  static constexpr int kListedWhole = 2048;  // rows of so many columns are listed without a guess
  static_assert(kVectors <= 8, "a thread's columns fit 32 bits");

  // Scores that are not there are NaN.
  static DEVICE_FUNCTION Pack<float> load_vector(const TopkRow& row, int64_t column) {
    Pack<float> v;
    if (row.aligned && column + 4 <= row.count)
      return *reinterpret_cast<const Pack<float>*>(row.scores + column);
    DEVICE_UNROLL
    for (int j = 0; j < 4; ++j)
      v.x[j] = column + j < row.count ? row.scores[(column + j) * row.stride] : device::nan();
    return v;
  }
  // Column of a thread's vector v within its segment.
  static DEVICE_FUNCTION int column_at(int v) { return 4 * (v * kThreads + device::thread()); }
  static DEVICE_FUNCTION void load(Pack<float> (&x)[kVectors], const TopkRow& row, int64_t base) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = load_vector(row, base + column_at(v));
  }

  // Steps 1 and 2. A count of 0: the guess failed, and nothing is listed.
  template <class List, class Bins, class Totals, class State>
  static DEVICE_FUNCTION Interval list_likely(List& list, Bins& bins, Totals& totals, State& state,
                                              Pack<float> (&x)[kVectors], const TopkRow& row,
                                              uint32_t k) {
    Interval in{0, ~uint64_t{0}, k, 0};
    if (row.count <= kListedWhole) {
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v)
        DEVICE_UNROLL
        for (int j = 0; j < 4; ++j) {
          const int column = column_at(v) + j;
          if (column < row.count) list[column] = entry_of(x[v].x[j], column);
        }
      if (device::thread() == 0) state[kListed] = uint32_t(row.count);
      in.count = uint32_t(row.count);
      device::sync_block();
      return in;
    }
    const bool long_row = row.count > kColumns;
    const float mean = sample(bins, x, row, long_row) * float(k);
    // Four deviations of the count of the k best in the sample, and some: that fails once in 10^5.
    const uint32_t rank = uint32_t(mean + 4 * device::sqrt(mean)) + 8;
    device::sync_block();
    choose_bin(bins, totals, state, rank);
    const uint32_t key = state[kBin] << kSampleShift;
    if (state[kCount] == 0 || key <= kKeyOfMinusInfinity) return in;
    in.low = uint64_t{key} << 32;
    uint64_t top = (uint64_t{state[kTopBin] + 1} << (32 + kSampleShift)) - 1;

    for (int64_t base = 0; base < row.count; base += kColumns) {
      if (long_row) load(x, row, base);
      append(list, state, x, row, base, score_of(key));
    }
    device::sync_block();
    const uint32_t listed = state[kListed];
    if (listed < k || listed > kList) return in;
    narrow(bins, totals, state, in, top, row, [&](const auto& use) {
      for (uint32_t i = uint32_t(device::thread()); i < listed; i += kThreads) {
        const int64_t column = int64_t(list[i]);
        const uint64_t entry = entry_of(row.scores[column * row.stride], column);
        list[i] = entry;
        use(entry);
      }
    });
    return in;
  }

  // Narrows by reading the row again and again until what is left fits the list. Marks what is
  // above.
  template <class List, class Bins, class Totals, class State, class Bitmap>
  static DEVICE_FUNCTION Interval list_exactly(List& list, Bins& bins, Totals& totals, State& state,
                                               Bitmap& bitmap, const TopkRow& row, uint32_t k) {
    Interval in{0, ~uint64_t{0}, k, 0};
    const auto source = [&](const auto& use) {
      for (int64_t c = device::thread(); c < row.count; c += kThreads)
        use(entry_of(row.scores[c * row.stride], c));
    };
    do narrow(bins, totals, state, in, row, source);
    while (in.count > kList);
    if (device::thread() == 0) state[kListed] = 0;
    device::sync_block();
    source([&](uint64_t entry) {
      if (entry > in.high)
        mark(bitmap, column_of(entry));
      else if (entry >= in.low)
        list[device::atomic_add(&state[kListed], 1u)] = entry;
    });
    device::sync_block();
    return in;
  }

  // Columns beyond the segment are marked later, segment by segment.
  template <class Bitmap>
  static DEVICE_FUNCTION void mark(Bitmap& bitmap, uint32_t column) {
    if (column < uint32_t(kColumns))
      device::atomic_or(&bitmap[column / 32], uint32_t{1} << column % 32);
  }

  template <class Bitmap>
  static DEVICE_FUNCTION void mark_segment(Bitmap& bitmap, const TopkRow& row, int64_t base,
                                           uint64_t least) {
    device::sync_block();
    for (int i = device::thread(); i < kWords; i += kThreads) bitmap[i] = 0;
    device::sync_block();
    Pack<float> x[kVectors];
    load(x, row, base);
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int column = column_at(v) + j;
        if (base + column < row.count && entry_of(x[v].x[j], base + column) >= least)
          mark(bitmap, uint32_t(column));
      }
    device::sync_block();
  }

  // Calls use(rank, column) for the marked columns, which are ranked from `first` on. Returns the
  // next segment's first rank.
  template <class Bitmap, class Totals, class Use>
  static DEVICE_FUNCTION uint32_t for_each_marked(Bitmap& bitmap, Totals& totals, uint32_t first,
                                                  int64_t columns, const Use& use) {
    constexpr int kBits = 4 * kVectors;  // a thread's
    const int from = device::thread() * kBits;
    uint32_t bits = bitmap[from / 32] >> from % 32;
    if (kBits < 32) bits &= (uint32_t{1} << kBits % 32) - 1;
    uint32_t rank = first + block_prefix(uint32_t(device::popcount(bits)), totals);
    for (; bits; bits &= bits - 1) use(rank++, from + device::first_lane(bits));
    if (columns > kColumns)
      for (int w = 0; w < device::waves(); ++w) first += totals[w];
    return first;
  }

 private:
  static constexpr int kSampleShift = 21;

  // Counts the keys of a sample and returns its share of the row: one score of each vector, or, of a
  // row that is longer than the registers, vectors all over it.
  template <class Bins>
  static DEVICE_FUNCTION float sample(Bins& bins, Pack<float> (&x)[kVectors], const TopkRow& row,
                                      bool long_row) {
    const auto count = [&](float score) {
      const float number = device::max(score, -device::infinity());
      device::atomic_add(&bins[key_of(number) >> kSampleShift], 1u);
    };
    if (!long_row) {
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        // Which of the four is a hash of the place: scores may have a period.
        const int j = int(uint32_t(v * kThreads + device::thread()) * 0x9e3779b1u >> 30);
        const float low = j & 1 ? x[v].x[1] : x[v].x[0], high = j & 1 ? x[v].x[3] : x[v].x[2];
        if (column_at(v) + j < row.count) count(j & 2 ? high : low);
      }
      return 0.25f;
    }
    const int64_t apart = row.count / kColumns;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      x[v] = load_vector(row, column_at(v) * apart);
    }
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v)
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) count(x[v].x[j]);
    return device::divide(float(kColumns), float(row.count));
  }

  // Lists the columns of a segment whose score is at least `least`.
  template <class List, class State>
  static DEVICE_FUNCTION void append(List& list, State& state, const Pack<float> (&x)[kVectors],
                                     const TopkRow& row, int64_t base, float least) {
    uint32_t hits = 0;
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) hits |= uint32_t(x[v].x[j] >= least) << (4 * v + j);
    }
    if (base + kColumns > row.count) {  // scores that were loaded too early are no columns
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = row.count - (base + column_at(v));
        if (left < 4) hits &= ~((left > 0 ? uint32_t{15} << left & 15 : 15u) << (4 * v));
      }
    }
    const uint32_t own = uint32_t(device::popcount(hits)), through = wave_prefix(own);
    uint32_t at = 0;
    if (device::lane() == device::kWave - 1) at = device::atomic_add(&state[kListed], through);
    at = device::shuffle(at, device::kWave - 1) + through - own;
    if (at + own > kList) return;  // the count tells that the list has overflowed
    for (; hits; hits &= hits - 1) {
      const int bit = device::first_lane(hits);
      list[at++] = uint64_t(base + column_at(bit / 4) + bit % 4);
    }
  }
};

}  // namespace qsa
