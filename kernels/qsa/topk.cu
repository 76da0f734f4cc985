// SPDX-License-Identifier: Apache-2.0
// qsa.topk: one block a row, whose scores are read from memory once where they fit the registers.
// Short rows (topk_short, up to 8192 columns) are kept as keys: histograms of their upper, middle
// and lower bits find the k-th best exactly, and prefix sums are the places of an ascending output.
// Rows of more than 32768 columns are cut into segments that many blocks treat so; the best of the
// segments are the next launch's row. Other rows (topk_kernel):
//   1. A sample of the row gives a score that somewhat more than k columns should reach.
//   2. Those columns become a list in shared memory.
//   3. A histogram of the list, and narrower ones while many are left, find the k-th best exactly.
//   4. What is chosen becomes a bitmap of columns, whose prefix sums are the places of an ascending
//      output, without a sort.
// Where the guess of step 1 fails (mass ties, rows of NaN, a sample that misleads) step 3 works on
// the whole row first: a list that overflows is never cut. Measurements and variants: topk.md.
#include "qsa/expansion.h"
#include "qsa/launches.h"
#include "qsa/topk.h"
#include "qsa/topk_short.h"
#include "qsa/topk_steps.h"

namespace qsa {
namespace {

// A row of no more columns than are chosen.
template <int kThreads, class Expansions>
DEVICE_FUNCTION void choose_all(const TopkParams& p, const ExpandParams& expand,
                                Expansions& expansion, uint32_t count) {
  const int64_t at = device::block_x();
  const uint32_t k = uint32_t(p.k);
  if (p.blocks.data)
    for (uint32_t j = uint32_t(device::thread()); j < k; j += kThreads)
      *element<int32_t>(p.blocks, at, j) = j < count ? int32_t(j) : -1;
  if (expand.indices.data)
    write_tokens<uint32_t>(expand, at, expansion[0], k,
                           [&](uint32_t i) { return i < count ? int64_t{i} : -1; });
}

// kFirst: the row are scores. kLast: what is chosen is the result, else a part of the next launch's
// row.
template <int kThreads, int kVectors, bool kFirst, bool kLast>
DEVICE_KERNEL_BLOCKS(kThreads, 1024 / kThreads)
topk_short(TopkParams p, ExpandParams expand, Segments s) {
  using S = ShortRow<kThreads, kVectors>;
  using Shape = TopkShape<kThreads, kVectors, true, false>;
  DEVICE_SHARED(uint32_t, bins, kBins);
  DEVICE_SHARED(uint32_t, largest, kBins);
  DEVICE_SHARED(uint32_t, smallest, kBins);
  DEVICE_SHARED(typename S::Counts, totals, kMaxWaves);
  DEVICE_SHARED(typename S::Counts, equals, kMaxWaves);
  DEVICE_SHARED(uint32_t, sums, kMaxWaves);
  DEVICE_SHARED(uint32_t, state, kStates);
  DEVICE_SHARED(Expansion, expansion, 1);
  const int block = device::block_x(), segment = kLast ? 0 : block % s.count;
  const int64_t at = kLast ? block : block / s.count, base = int64_t{segment} * S::kColumns;
  const uint32_t k = uint32_t(p.k);
  const int64_t columns = kLast && kFirst
                              ? p.logits.size[1]
                              : smaller((kFirst ? p.logits.size[1] : s.pitch) - base, S::kColumns);

  // Scores of a small call are loaded before the number of visible columns is there, which saves a
  // latency of memory. What lies beyond may be uninitialised; it is masked where it is used.
  const auto visible = [&] {
    return uint32_t(smaller(larger(load_index(p.visible, at) - (kFirst ? base : 0), 0),
                            kFirst ? columns : p.logits.size[1]));
  };
  typename Shape::Row row{nullptr, 1, uint32_t(columns), uint32_t(columns)};
  uint32_t live = 0;  // columns, also of a row that a launch before this one has shortened
  Pack<float> x[kVectors];
  S keys;
  if constexpr (kFirst) {
    row.scores = element<const float>(p.logits, at, base);
    if (!p.eager) row.loaded = live = visible();
    Shape::load(x, row, 0);
  } else {
    keys.load(s.keys + at * s.pitch + base, row.count);
  }
  DEVICE_UNROLL
  for (int i = 0; i < kBins / 4; i += kThreads)
    if (kBins / 4 % kThreads == 0 || i + device::thread() < kBins / 4) {
      const int own = 4 * (i + device::thread());
      *reinterpret_cast<Pack<uint32_t>*>(device::data(bins) + own) = {};
      *reinterpret_cast<Pack<uint32_t>*>(device::data(largest) + own) = {};
      *reinterpret_cast<Pack<uint32_t>*>(device::data(smallest) +
                                         own) = {{UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    }
  if (kLast && expand.indices.data && device::thread() == kThreads - 1)
    expansion[0] = expansion_of(expand, at);
  if (!kFirst || p.eager) live = visible();
  if (kFirst) row.count = live;
  device::sync_block();

  uint32_t* const best_keys = s.best_keys + int64_t{block} * s.places;
  int32_t* const best_columns = s.best_columns + int64_t{block} * s.places;
  const auto column_of_place = [&](uint32_t place) {
    return kFirst ? int32_t(base + place) : s.columns[at * s.pitch + base + place];
  };
  if (kLast ? live <= k : row.count <= k) {
    if constexpr (kLast) {
      choose_all<kThreads>(p, expand, expansion, live);
    } else {
      for (uint32_t j = uint32_t(device::thread()); j < uint32_t(s.places); j += kThreads) {
        const bool there = j < row.count;
        best_columns[j] = there ? column_of_place(j) : 0;
        best_keys[j] = !there   ? 0
                       : kFirst ? device::max(key_of(row.at(j)), 1u)
                                : s.keys[at * s.pitch + base + j];
      }
    }
    return;
  }

  if constexpr (kFirst) {
    // Columns that fill no vector of four.
    if (const uint32_t tail = row.tail(); tail < row.count) {
      DEVICE_UNROLL
      for (int v = 0; v < kVectors; ++v)
        if (S::column_at(v) == tail) {
          DEVICE_UNROLL
          for (int j = 0; j < 3; ++j)
            if (tail + uint32_t(j) < row.count) x[v].x[j] = row.at(tail + uint32_t(j));
        }
    }
    keys.take(x, row.count);
  }
  // Bits 31 ... 21, 20 ... 10, 9 ... 0 of the k-th best key, until no key is on its bin's edge.
  uint32_t least = 0, wanted = k, count = 0;
  DEVICE_ROLLED
  for (int shift = 21, width = 0;; width = 1 << shift, shift = shift > 10 ? 10 : 0) {
    const bool ends = shift == 10 && count <= kCrowd;
    if (width == 0)
      keys.count(bins);
    else
      keys.count(bins, largest, smallest, least, uint32_t(width), shift, ends);
    device::sync_block();
    choose_bin<kThreads, false>(bins, sums, state, wanted);
    const uint32_t bin = state[kBin];
    least += bin << shift;
    wanted = state[kWanted];
    count = state[kCount];
    if (count == wanted || shift == 0) break;
    // Mostly two keys, of which the larger is wanted.
    if (ends && count == 2 && largest[bin] != smallest[bin]) {
      least = largest[bin];
      count = wanted;  // no ties
      break;
    }
  }

  uint32_t place[kVectors];
  const uint32_t tied = least;
  if (count != wanted) {  // ties: the first columns of the least score
    keys.template places<true>(equals, least, place);
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j)
        if (keys.key[v][j] == least && place[v]++ < wanted) keys.key[v][j] = UINT32_MAX;
    }
    ++least;
  }
  keys.template places<false>(totals, least, place);
  if constexpr (!kLast) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        if (keys.key[v][j] < least) continue;
        const uint32_t rank = place[v]++;
        best_keys[rank] = keys.key[v][j] == UINT32_MAX ? tied : keys.key[v][j];
        best_columns[rank] = column_of_place(S::column_at(v) + uint32_t(j));
      }
    }
    if (const uint32_t pad = k + uint32_t(device::thread()); pad < uint32_t(s.places))
      best_keys[pad] = 0;
    return;
  }
  // Through shared memory, as many as it holds at a time: a chosen score costs few instructions.
  const auto stage = [&](auto fits, uint32_t first) {
    DEVICE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      uint32_t rank = place[v] - first;
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j)
        if (keys.key[v][j] >= least) {
          if (decltype(fits)::value || rank < kBins) bins[rank] = S::column_at(v) + uint32_t(j);
          ++rank;
        }
    }
  };
  int32_t* const out = element<int32_t>(p.blocks, at);
  DEVICE_ROLLED
  for (uint32_t first = 0; first < k; first += kBins) {
    if (k <= kBins) {
      stage(std::true_type{}, 0);
    } else {
      device::sync_block();
      stage(std::false_type{}, first);
    }
    device::sync_block();
    DEVICE_ROLLED
    for (uint32_t i = uint32_t(device::thread()); i < kBins && first + i < k; i += kThreads) {
      const int32_t column = column_of_place(bins[i]);
      if (!kFirst && expand.indices.data) bins[i] = uint32_t(column);
      if (p.blocks.data) out[int64_t(first + i) * p.blocks.stride[1]] = column;
    }
  }
  if (!expand.indices.data) return;
  if (!kFirst) device::sync_block();
  write_tokens<uint32_t>(expand, at, expansion[0], k, [&](uint32_t i) { return int64_t{bins[i]}; });
}

template <int kThreads, int kVectors, bool kDense, bool kLong>
DEVICE_KERNEL_BLOCKS(kThreads, (TopkShape<kThreads, kVectors, kDense, kLong>::kBlocks))
topk_kernel(TopkParams p, ExpandParams expand) {
  using S = TopkShape<kThreads, kVectors, kDense, kLong>;
  DEVICE_SHARED(uint32_t, bins, kBins);
  DEVICE_SHARED(uint64_t, list, S::kList);
  DEVICE_SHARED(uint64_t, few, kFew + 1);
  DEVICE_SHARED(uint32_t, bitmap, S::kWords);
  DEVICE_SHARED(uint32_t, ranks, S::kWords);
  DEVICE_SHARED(uint32_t, totals, kMaxWaves);
  DEVICE_SHARED(uint32_t, state, kStates);
  DEVICE_SHARED(Expansion, expansion, 1);
  device::wait_for_previous();
  const int64_t at = device::block_x(), columns = p.logits.size[1];
  const uint32_t k = uint32_t(p.k);
  typename S::Row row{element<const float>(p.logits, at), p.logits.stride[1], 0, uint32_t(columns)};

  // Scores of a small call are loaded before the number of visible columns is there, which saves a
  // latency of memory. What lies beyond may be uninitialised; it is masked where it is used.
  const bool eager = !kLong && p.eager;
  const auto visible = [&] {
    return uint32_t(smaller(larger(load_index(p.visible, at), 0), columns));
  };
  if (!eager) row.loaded = row.count = visible();
  Pack<float> x[kVectors];
  if (!kLong || row.loaded <= S::kColumns) S::load(x, row, 0);
  DEVICE_ROLLED
  for (int i = device::thread(); i < kBins / 4; i += kThreads)
    reinterpret_cast<Pack<uint32_t>*>(device::data(bins))[i] = {};
  DEVICE_ROLLED
  for (int i = device::thread(); i < S::kWords; i += kThreads) bitmap[i] = 0;
  if (device::thread() < kStates) state[device::thread()] = 0;
  const bool expands = expand.indices.data != nullptr;
  if (expands && device::thread() == kThreads - 1) expansion[0] = expansion_of(expand, at);
  if (eager) row.count = visible();
  device::sync_block();

  if (row.count <= k) return choose_all<kThreads>(p, expand, expansion, row.count);

  // The interval of entries that holds the k-th best one, and a list of those in it.
  Interval in = S::list_likely(list, bins, totals, state, x, row, k);
  // Whether the list holds all that will be chosen.
  const bool listed_all = in.count > 0 && (!kLong || row.count <= S::kColumns);
  if (in.count == 0 || in.count > kFew) S::narrow(list, bins, totals, state, bitmap, row, in);

  // What is above the interval is chosen; of the few in it, the `wanted` best, often all.
  const uint32_t listed = state[kListed];
  const bool all_in = in.count == in.wanted;
  const uint64_t below = all_in ? (in.low > 0 ? in.low - 1 : 0) : in.high;  // no entry is 0
  DEVICE_ROLLED
  for (uint32_t i = uint32_t(device::thread()); i < listed; i += kThreads) {
    const uint64_t entry = list[i];
    if (entry > below)
      S::mark(bitmap, column_of(entry));
    else if (entry >= in.low)
      few[device::atomic_add(&state[kFewListed], 1u)] = entry;
  }
  device::sync_block();
  uint64_t least = in.low;  // all entries from here on are chosen
  if (!all_in) {
    if (uint32_t(device::thread()) < in.count) {
      const uint64_t own = few[device::thread()];
      uint32_t better = 0;
      DEVICE_ROLLED
      for (uint32_t i = 0; i < in.count; ++i) better += few[i] > own;
      if (better < in.wanted) S::mark(bitmap, column_of(own));
      if (better + 1 == in.wanted) few[kFew] = own;
    }
    device::sync_block();
    least = few[kFew];
  }

  const auto put = [&](uint32_t rank, uint32_t column) {
    if (expands)
      bins[rank] = column;
    else
      *element<int32_t>(p.blocks, at, rank) = int32_t(column);
  };
  if (listed_all) {
    S::rank_words(bitmap, ranks, totals, 0);
    DEVICE_ROLLED
    for (uint32_t i = uint32_t(device::thread()); i < listed; i += kThreads)
      if (const uint64_t entry = list[i]; entry >= least)
        put(S::rank_of(bitmap, ranks, column_of(entry)), column_of(entry));
  } else {
    uint32_t first = 0, base = 0;
    do {
      if (kLong && row.count > S::kColumns) S::mark_segment(bitmap, row, base, least);
      first = S::rank_words(bitmap, ranks, totals, first);
      S::for_each_marked(bitmap, ranks,
                         [&](uint32_t rank, uint32_t column) { put(rank, base + column); });
      base += S::kColumns;
    } while (kLong && base < row.count);
  }
  if (!expands) return;
  device::sync_block();
  if (p.blocks.data) {
    DEVICE_ROLLED
    for (uint32_t j = uint32_t(device::thread()); j < k; j += kThreads)
      *element<int32_t>(p.blocks, at, j) = int32_t(bins[j]);
  }
  write_tokens<uint32_t>(expand, at, expansion[0], k, [&](uint32_t i) { return int64_t{bins[i]}; });
}

template <int kThreads, int kVectors, bool kDense, bool kLong>
void launch_shape(const TopkParams& p, const ExpandParams& expand, void* stream) {
  device::launch_overlapping(topk_kernel<kThreads, kVectors, kDense, kLong>,
                             blocks(p.logits.size[0]), kThreads, 0, stream, p, expand);
}

template <int kThreads, int kVectors, bool kFirst = true, bool kLast = true>
void launch_short(const TopkParams& p, const ExpandParams& expand, const Segments& s,
                  void* stream) {
  device::launch(topk_short<kThreads, kVectors, kFirst, kLast>,
                 blocks(p.logits.size[0] * (kLast ? 1 : s.count)), kThreads, 0, stream, p, expand,
                 s);
}

// Long rows: segments of kSegment columns, their best, the best of those, until one block holds
// what is left.
constexpr int64_t kSegment = 8192, kLastSegment = 16384;
constexpr int64_t kMostPlaces = 8 << 20;  // of all rows: 64 MiB

int64_t segments_of(int64_t columns) { return (columns + kSegment - 1) / kSegment; }
int64_t places_of(const TopkParams& p) { return (p.k + 3) / 4 * 4; }
bool dense_scores(const TopkParams& p) {
  return p.logits.stride[1] == 1 && p.logits.stride[0] % 4 == 0 &&
         reinterpret_cast<uintptr_t>(p.logits.data) % 16 == 0;
}
// By shapes alone: the query of the workspace has no addresses.
bool may_segment(const TopkParams& p) {
  return p.logits.size[1] > 32768 && p.logits.size[1] <= INT32_MAX && p.k <= kSegment / 4;
}
// More rows take turns. Never less room for more rows.
int64_t rows_at_once(const TopkParams& p) {
  const int64_t of_row = segments_of(p.logits.size[1]) * places_of(p);
  return std::min(p.logits.size[0], std::max(int64_t{1}, kMostPlaces / of_row));
}
struct Levels {
  uint32_t* keys[2];
  int32_t* columns[2];
};
Levels plan_levels(const TopkParams& p, device::Carver& carver) {
  Levels l{};
  if (!may_segment(p)) return l;
  int64_t columns = p.logits.size[1];
  for (int i : {0, 1}) {
    columns = segments_of(columns) * places_of(p);
    l.keys[i] = carver.take<uint32_t>(uint64_t(rows_at_once(p) * columns));
    l.columns[i] = carver.take<int32_t>(uint64_t(rows_at_once(p) * columns));
  }
  return l;
}

void launch_levels_of_rows(const TopkParams& p, const ExpandParams& expand, const Levels& l,
                           void* stream) {
  Segments s{};
  s.places = int(places_of(p));
  s.count = int(segments_of(p.logits.size[1]));
  s.best_keys = l.keys[0];
  s.best_columns = l.columns[0];
  launch_short<512, 4, true, false>(p, expand, s, stream);
  for (int from = 0;; from ^= 1) {
    s.pitch = int64_t{s.count} * s.places;
    s.keys = l.keys[from];
    s.columns = l.columns[from];
    if (s.pitch <= 8192) return launch_short<512, 4, false, true>(p, expand, s, stream);
    if (s.pitch <= kLastSegment) return launch_short<1024, 4, false, true>(p, expand, s, stream);
    s.count = int(segments_of(s.pitch));
    s.best_keys = l.keys[from ^ 1];
    s.best_columns = l.columns[from ^ 1];
    launch_short<512, 4, false, false>(p, expand, s, stream);
  }
}
void launch_levels(const TopkParams& all, const ExpandParams& expand_all, const Levels& l,
                   void* stream) {
  const int64_t rows = all.logits.size[0], most = rows_at_once(all);
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    TopkParams p = all;
    p.logits = rows_of(all.logits, row, count);
    p.visible = rows_of(all.visible, row, count);
    p.blocks = rows_of(all.blocks, row, count);
    ExpandParams expand = expand_all;
    if (expand.indices.data) {
      expand.positions = rows_of(expand_all.positions, row, count);
      expand.token_to_req = rows_of(expand_all.token_to_req, row, count);
      expand.indices = rows_of(expand_all.indices, row, count);
    }
    launch_levels_of_rows(p, expand, l, stream);
  }
}

void launch(TopkParams p, const ExpandParams& expand, device::Carver& carver, void* stream) {
  constexpr int64_t kEagerBytes = 4 << 20, kManyRows = 5;  // of a multiprocessor
  const int64_t rows = p.logits.size[0], columns = p.logits.size[1];
  if (rows == 0) return;
  if (columns > INT32_MAX || p.k > INT32_MAX)
    throw device::Unsupported("columns and k have to fit int32, got " + std::to_string(columns) +
                              " and " + std::to_string(p.k));
  const bool dense = dense_scores(p);
  const Levels levels = plan_levels(p, carver);
  p.eager = rows * columns <= kEagerBytes / int64_t{sizeof(float)};
  if (!dense) return launch_shape<1024, 8, false, true>(p, expand, stream);
  if (columns <= 2048) return launch_short<256, 2>(p, expand, {}, stream);
  // Many rows: four blocks a multiprocessor hide each other's barriers.
  if (columns <= 8192 && p.k <= 1024 && rows > int64_t{kManyRows} * device::multiprocessors())
    return launch_shape<256, 8, true, false>(p, expand, stream);
  if (columns <= 8192) return launch_short<512, 4>(p, expand, {}, stream);
  if (columns <= 16384) return launch_shape<512, 8, true, false>(p, expand, stream);
  if (columns <= 32768) return launch_shape<512, 16, true, false>(p, expand, stream);
  if (may_segment(p)) return launch_levels(p, expand, levels, stream);
  launch_shape<512, 16, true, true>(p, expand, stream);
}

struct Topk {
  static constexpr const toolkit::Contract& contract = topk::contract;
  static constexpr const char* implementation = "portable";
  static TopkParams params(const toolkit::Args& args) {
    TopkParams p{};
    p.logits = tensor_of<2>(args.tensor("logits"));
    p.visible = tensor_of<1>(args.tensor("visible_blocks"));
    p.blocks = tensor_of<2>(args.tensor("block_indices"));
    p.k = p.blocks.size[1];
    return p;
  }
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    plan_topk(params(args), carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    device::Carver carver(call.workspace);
    launch_topk(params(call.args), carver, call.stream);
  }
};
DEVICE_OP(Topk)

}  // namespace

void plan_topk(const TopkParams& p, device::Carver& carver) { plan_levels(p, carver); }

void launch_topk(const TopkParams& p, device::Carver& carver, void* stream) {
  launch(p, ExpandParams{}, carver, stream);
}

bool can_expand(int64_t k, const ExpandParams& expand) {
  return k <= kBins && expand.indices.size[1] <= INT32_MAX;
}
void launch_topk_expand(const TopkParams& p, const ExpandParams& expand, device::Carver& carver,
                        void* stream) {
  launch(p, with_divider(expand), carver, stream);
}

}  // namespace qsa
