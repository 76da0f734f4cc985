// SPDX-License-Identifier: Apache-2.0
// qsa.topk: one block a row, whose scores are read from memory once where they fit the registers.
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
#include "qsa/topk_steps.h"

namespace qsa {
namespace {

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

  if (row.count <= k) {
    if (p.blocks.data)
      for (uint32_t j = uint32_t(device::thread()); j < k; j += kThreads)
        *element<int32_t>(p.blocks, at, j) = j < row.count ? int32_t(j) : -1;
    if (expands)
      write_tokens<uint32_t>(expand, at, expansion[0], k,
                             [&](uint32_t i) { return i < row.count ? int64_t{i} : -1; });
    return;
  }

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

void launch(TopkParams p, const ExpandParams& expand, void* stream) {
  constexpr int64_t kEagerBytes = 4 << 20;
  const int64_t rows = p.logits.size[0], columns = p.logits.size[1];
  if (rows == 0) return;
  if (columns > INT32_MAX || p.k > INT32_MAX)
    throw device::Unsupported("columns and k have to fit int32, got " + std::to_string(columns) +
                              " and " + std::to_string(p.k));
  const bool dense = p.logits.stride[1] == 1 && p.logits.stride[0] % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(p.logits.data) % 16 == 0;
  p.eager = rows * columns <= kEagerBytes / int64_t{sizeof(float)};
  if (!dense) return launch_shape<1024, 8, false, true>(p, expand, stream);
  if (columns <= 2048) return launch_shape<256, 2, true, false>(p, expand, stream);
  if (columns <= 8192 && p.k <= 1024) {
    if (rows > 2 * device::multiprocessors())
      return launch_shape<256, 8, true, false>(p, expand, stream);
    return launch_shape<512, 4, true, false>(p, expand, stream);
  }
  if (columns <= 16384) return launch_shape<512, 8, true, false>(p, expand, stream);
  if (columns <= 32768) return launch_shape<512, 16, true, false>(p, expand, stream);
  launch_shape<512, 16, true, true>(p, expand, stream);
}

struct Topk {
  static constexpr const toolkit::Contract& contract = topk::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    TopkParams p{};
    p.logits = tensor_of<2>(call.tensor("logits"));
    p.visible = tensor_of<1>(call.tensor("visible_blocks"));
    p.blocks = tensor_of<2>(call.tensor("block_indices"));
    p.k = p.blocks.size[1];
    launch_topk(p, call.stream);
  }
};
DEVICE_OP(Topk)

}  // namespace

void launch_topk(const TopkParams& p, void* stream) { launch(p, ExpandParams{}, stream); }

bool can_expand(int64_t k, const ExpandParams& expand) {
  return k <= kBins && expand.indices.size[1] <= INT32_MAX;
}
void launch_topk_expand(const TopkParams& p, const ExpandParams& expand, void* stream) {
  launch(p, expand, stream);
}

}  // namespace qsa
