// SPDX-License-Identifier: Apache-2.0
// The first step of attend_union_sm_90.cu, which alone includes this: a block a group of rows finds which tokens its
// rows list together, where they lie, and whether it pays to read them together.
#pragma once

#include "device/nvidia.h"
#include "qsa/common.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kMaxRows = 32;  // of a group: bits of a word
constexpr int kTile = 64;     // tokens
// A token of the list costs this share of what a token of a single row costs in the row kernel.
constexpr float kUnionCost = 1.3f;
constexpr int kColumns = 128;  // of a group: queries of a KV head, row by row
constexpr int kListThreads = 512;
constexpr int kListAhead = 4;      // neighbouring tokens of a row that a thread takes at once
constexpr int kListBatch = 4;      // of those, so that one wait is for all
constexpr int kWindowWords = 256;  // of a row's bitmap: tokens that are sorted out at once
constexpr int kWindow = kWindowWords * 32;

// Where a token's key and value lie, in chunks of 16 bytes behind the first of the KV head's. What
// stands for a token that is none lies where the first does, and no row lists it.
struct alignas(8) Place {
  uint32_t key, value;
};

struct alignas(8) Mask {  // of a tile: tokens that a row lists
  uint32_t half[2];
};

struct Union {
  int rows;   // that a group touches, at most
  int group;  // query heads of a KV head
  int kv_heads;
  int64_t groups, room;  // room: entries of a group's list, whole tiles
  uint32_t key_page, key_token, value_page, value_token;  // strides of the caches, in chunks
  Place* places;       // [groups, room]
  uint32_t* listings;  // [groups, room]: rows that list a token, a bit a row
  Mask* masks;         // [groups, room / kTile, rows]
  int32_t* counts;     // [groups]: tokens, or kRowByRow
  uint8_t* served;     // [R,Hkv]
  float scale;         // D^-0.5 * log2(e)
  bool packed_output;
};
constexpr int32_t kRowByRow = -1;

// The rows of a group. The first and the last may be in part those of its neighbours.
struct Rows {
  int64_t first;
  int count;
};
DEVICE_FUNCTION Rows rows_of(const AttendParams& p, const Union& u, int64_t group) {
  const int64_t first = group * kColumns / u.group;
  const int64_t end = smaller(p.q.size[0], (group * kColumns + kColumns - 1) / u.group + 1);
  return {first, int(end - first)};
}

template <class Id>
DEVICE_KERNEL_BLOCKS(kListThreads, 2)
list_kernel(AttendParams p, Union u) {
  DEVICE_SHARED(uint32_t, bits, kMaxRows * kWindowWords);  // [row][word]
  DEVICE_SHARED(uint32_t, any_row, kWindowWords);
  DEVICE_SHARED(int, before, kWindowWords);  // tokens of the window's words before
  DEVICE_SHARED(int, scratch, 32);
  const int thread = device::thread();
  const int64_t group = device::block_x();
  const Rows own_rows = rows_of(p, u, group);
  const int64_t first_row = own_rows.first;
  const int rows = own_rows.count;
  const int width = int(p.tokens.size[1]), parts = (width + kListAhead - 1) / kListAhead;
  const uint32_t page_size = uint32_t(p.k_cache.size[1]);
  const int64_t capacity = smaller(p.block_table.size[1] * p.k_cache.size[1], INT32_MAX);
  const int64_t request = load_index(p.token_to_req, first_row);

  // Rows that begin here. The next step takes back what is not served.
  const int begun = first_row * u.group < group * kColumns ? 1 : 0;
  for (int i = begun * u.kv_heads + thread; i < rows * u.kv_heads; i += kListThreads)
    u.served[first_row * u.kv_heads + i] = 1;
  bool together = request >= 0 && request < p.block_table.size[0];
  for (int r = 1; r < rows; ++r)
    together = together && load_index(p.token_to_req, first_row + r) == request;

  // All listed tokens, kListAhead neighbours of a row a time: visit(row, tokens). -1 is none.
  const auto each_tokens = [&](auto visit) {
    for (int base = thread; together && base < rows * parts; base += kListThreads * kListBatch) {
      int row[kListBatch], token[kListBatch][kListAhead];
      DEVICE_UNROLL
      for (int b = 0; b < kListBatch; ++b) {
        const int item = base + b * kListThreads;
        row[b] = item / parts;
        const int first = (item - row[b] * parts) * kListAhead;
        const Id* from = element<const Id>(p.tokens, first_row + row[b], first);
        DEVICE_UNROLL
        for (int i = 0; i < kListAhead; ++i) {
          const bool listed = item < rows * parts && first + i < width;
          const int64_t t = listed ? int64_t(from[i * p.tokens.stride[1]]) : -1;
          token[b][i] = t >= 0 && t < capacity ? int(t) : -1;
        }
      }
      DEVICE_UNROLL
      for (int b = 0; b < kListBatch; ++b) visit(row[b], token[b]);
    }
  };
  int last_window = together ? 0 : -1;
  if (capacity > kWindow) {
    each_tokens([&](int, const int (&token)[kListAhead]) {
      for (const int t : token) last_window = device::max(last_window, t < 0 ? -1 : t / kWindow);
    });
    last_window = device::block_max(last_window, scratch);
  }

  Place* const places = u.places + group * u.room;
  uint32_t* const listings = u.listings + group * u.room;
  int listed = 0, twice = 0, count = 0;
  for (int window = 0; window <= last_window; ++window) {
    device::sync_block();  // the readers of the previous window are done
    for (int i = thread; i < rows * kWindowWords; i += kListThreads) bits[i] = 0;
    device::sync_block();
    each_tokens([&](int r, const int (&token)[kListAhead]) {
      // Neighbours mostly lie in one word: they are added at once, because atomics on one word queue.
      int word = -1;
      uint32_t gathered = 0;
      const auto add = [&] {
        if (word >= 0 && (device::atomic_or(&bits[r * kWindowWords + word], gathered) & gathered))
          twice = 1;
      };
      DEVICE_UNROLL
      for (int i = 0; i < kListAhead; ++i) {
        if (token[i] < 0 || token[i] / kWindow != window) continue;
        const int at = token[i] % kWindow;
        if (at / 32 != word) {
          add();
          word = at / 32;
          gathered = 0;
        }
        const uint32_t bit = uint32_t{1} << at % 32;
        if (gathered & bit) twice = 1;
        gathered |= bit;
        ++listed;
      }
      add();
    });
    device::sync_block();
    uint32_t any = 0;
    if (thread < kWindowWords)
      for (int r = 0; r < rows; ++r) any |= bits[r * kWindowWords + thread];
    const int own = device::popcount(any);
    int through = own;
    for (int step = 1; step < device::kWave; step *= 2) {
      const int lower = device::shuffle_up(through, step);
      if (device::lane() >= step) through += lower;
    }
    if (device::lane() == device::kWave - 1) scratch[device::wave()] = through;
    device::sync_block();
    int next = count + through - own;
    for (int w = 0; w < device::waves(); ++w) {
      if (w < device::wave()) next += scratch[w];
      count += scratch[w];
    }
    if (thread < kWindowWords) {
      any_row[thread] = any;
      before[thread] = next;
    }
    device::sync_block();
    // A token a lane, a word a wave.
    for (int w = device::wave(); w < kWindowWords; w += device::waves()) {
      const uint32_t all = any_row[w], bit = uint32_t{1} << device::lane();
      if (!(all & bit)) continue;
      uint32_t listing = 0;
      for (int r = 0; r < rows; ++r)
        listing |= (bits[r * kWindowWords + w] & bit ? uint32_t{1} : 0) << r;
      const uint32_t token = uint32_t(window) * kWindow + uint32_t(w) * 32 + uint32_t(device::lane());
      const uint32_t column = token / page_size, place = token % page_size;
      const int64_t page = live_page(p.block_table, request, column, p.k_cache.size[0]);
      const int at = before[w] + device::popcount(all & (bit - 1));
      places[at] = page < 0 ? Place{0, 0}
                            : Place{uint32_t(page) * u.key_page + place * u.key_token,
                                    uint32_t(page) * u.value_page + place * u.value_token};
      listings[at] = page < 0 ? 0 : listing;
    }
  }
  device::sync_block();
  listed = device::block_sum(listed, scratch);
  twice = device::block_sum(twice, scratch);
  const float part = float(kColumns) / float(rows * u.group);  // of these rows
  const bool pays = float(count) * kUnionCost <= float(listed) * part;
  const bool shared = together && twice == 0 && pays;
  if (thread == 0) u.counts[group] = shared ? count : kRowByRow;
  if (!shared) return;
  // The last tile is filled up.
  const int filled = (count + kTile - 1) / kTile * kTile;
  uint32_t* const masks = u.masks[group * (u.room / kTile) * u.rows].half;
  for (int base = 0; base < filled; base += kListThreads) {
    const int i = base + thread;
    const uint32_t listing = i < count ? listings[i] : 0;
    if (i >= count && i < filled) places[i] = Place{0, 0};
    uint32_t own = 0;
    for (int r = 0; r < rows; ++r) {
      const uint32_t row_mask = uint32_t(device::ballot((listing >> r & 1) != 0));
      if (device::lane() == r) own = row_mask;
    }
    if (i < filled && device::lane() < u.rows)
      masks[(i / kTile * u.rows + device::lane()) * 2 + i / 32 % 2] = own;
  }
}

}  // namespace
}  // namespace qsa
