// SPDX-License-Identifier: Apache-2.0
// The first step of attend_union_sm_90.cu, which alone includes this: a block a group of rows finds
// which tokens its rows list together, where they lie, and whether it pays to read them together.
#pragma once

#include "device/nvidia.h"
#include "qsa/common.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kMaxRows = 32;  // of a group: bits of a word
constexpr int kTile = 64;     // tokens
constexpr int kTilesBehind =
    3;  // that nobody lists: what reads ahead need not look where the end is
// A token of the list costs this share of what a token of a single row costs in the row kernel.
constexpr float kUnionCost = 1.3f;
constexpr int kColumns = 128;  // of a group: queries of a KV head, row by row
constexpr int kListThreads = 512;
constexpr int kListAhead = 4;  // neighbouring tokens of a row that a thread takes at once
constexpr int kListRows = 4;   // of so many rows, so that one wait is for all
constexpr int kBits = 32;      // of a word
constexpr int kListShared = 200 * 1024 / 4;  // words of shared memory, at most

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
  int64_t groups, room;  // room: entries of a group's list, whole tiles with kTilesBehind
  uint32_t key_page, key_token, value_page, value_token;  // strides of the caches, in chunks
  int window_words;  // of a row's bitmap: tokens that are sorted out at once
  Place* places;     // [groups, room]
  Mask* masks;       // [groups, room / kTile, rows]
  int32_t* counts;   // [groups]: tokens, or kRowByRow
  uint8_t* served;   // [R,Hkv]
  float scale;       // D^-0.5 * log2(e)
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
  DEVICE_DYNAMIC_SHARED(uint32_t, shared);
  DEVICE_SHARED(int, scratch, 32);
  const int words = u.window_words, window_tokens = words * kBits;
  const int list_words = int(u.room / kBits);
  uint32_t* const bits = device::data(shared);      // [row][word] of the window
  uint32_t* const any_row = bits + u.rows * words;  // [word]
  uint32_t* const before = any_row + words;         // [word]: tokens of the list before it
  uint32_t* const row_masks = before + words;       // [row][word] of the list
  const int thread = device::thread();
  const int64_t group = device::block_x();
  const Rows own_rows = rows_of(p, u, group);
  const int64_t first_row = own_rows.first;
  const int rows = own_rows.count;
  const int width = int(p.tokens.size[1]);
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
    for (int base = thread * kListAhead; together && base < width;
         base += kListThreads * kListAhead)
      for (int from = 0; from < rows; from += kListRows) {
        int token[kListRows][kListAhead];
        DEVICE_UNROLL
        for (int r = 0; r < kListRows; ++r) {
          const Id* at = element<const Id>(p.tokens, first_row + from + r, base);
          DEVICE_UNROLL
          for (int i = 0; i < kListAhead; ++i) {
            const bool listed = from + r < rows && base + i < width;
            const int64_t t = listed ? int64_t(at[i * p.tokens.stride[1]]) : -1;
            token[r][i] = t >= 0 && t < capacity ? int(t) : -1;
          }
        }
        DEVICE_UNROLL
        for (int r = 0; r < kListRows; ++r)
          if (from + r < rows) visit(from + r, token[r]);
      }
  };
  int last_window = together ? 0 : -1;
  if (capacity > window_tokens) {
    each_tokens([&](int, const int(&token)[kListAhead]) {
      for (const int t : token)
        last_window = device::max(last_window, t < 0 ? -1 : t / window_tokens);
    });
    last_window = device::block_max(last_window, scratch);
  }

  Place* const places = u.places + group * u.room;
  for (int i = thread; i < u.rows * list_words; i += kListThreads) row_masks[i] = 0;
  int listed = 0, twice = 0, count = 0;
  bool shared_tokens = false;
  for (int window = 0; window <= last_window; ++window) {
    const uint32_t first_token = uint32_t(window) * uint32_t(window_tokens);
    device::sync_block();  // the readers of the previous window are done
    for (int i = thread; i < rows * words; i += kListThreads) bits[i] = 0;
    device::sync_block();
    each_tokens([&](int r, const int(&token)[kListAhead]) {
      const auto add = [&](uint32_t at, uint32_t some) {
        if (device::atomic_or(&bits[r * words + int(at / kBits)], some << at % kBits) &
            some << at % kBits)
          twice = 1;
      };
      // Mostly the tokens of one block, in one word.
      const uint32_t at = uint32_t(token[0]) - first_token;
      bool run = at < uint32_t(window_tokens) && at % kBits + kListAhead <= kBits;
      DEVICE_UNROLL
      for (int i = 1; i < kListAhead; ++i) run = run && token[i] == token[0] + i;
      if (run) {
        add(at, (1u << kListAhead) - 1);
        listed += kListAhead;
        return;
      }
      for (const int t : token) {
        if (t < 0 || uint32_t(t) - first_token >= uint32_t(window_tokens)) continue;
        add(uint32_t(t) - first_token, 1);
        ++listed;
      }
    });
    device::sync_block();
    // Where each word's tokens begin in the list.
    const int per_thread = (words + kListThreads - 1) / kListThreads;
    const int own_first = thread * per_thread, own_end = device::min(words, own_first + per_thread);
    int own = 0;
    for (int w = own_first; w < own_end; ++w) {
      uint32_t any = 0;
      for (int r = 0; r < rows; ++r) any |= bits[r * words + w];
      any_row[w] = any;
      own += device::popcount(any);
    }
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
    for (int w = own_first; w < own_end; ++w) {
      before[w] = uint32_t(next);
      next += device::popcount(any_row[w]);
    }
    device::sync_block();
    if (window == last_window) {
      listed = device::block_sum(listed, scratch);
      twice = device::block_sum(twice, scratch);
      const float part = float(kColumns) / float(rows * u.group);  // of these rows
      shared_tokens = twice == 0 && float(count) * kUnionCost <= float(listed) * part;
      if (!shared_tokens) break;
    }
    // A token a lane, a word a wave. No row lists what lies nowhere.
    for (int w = device::wave(); w < words; w += device::waves()) {
      const uint32_t all = any_row[w], bit = uint32_t{1} << device::lane();
      if (all == 0) continue;
      const uint32_t token = first_token + uint32_t(w * kBits) + uint32_t(device::lane());
      const uint32_t column = token / page_size, place = token - column * page_size;
      const bool here = (all & bit) != 0;
      const int64_t page = here ? live_page(p.block_table, request, column, p.k_cache.size[0]) : 0;
      if (here)
        places[before[w] + uint32_t(device::popcount(all & (bit - 1)))] =
            page < 0 ? Place{0, 0}
                     : Place{uint32_t(page) * u.key_page + place * u.key_token,
                             uint32_t(page) * u.value_page + place * u.value_token};
      const uint32_t nowhere = uint32_t(device::ballot(page < 0));
      if (nowhere && device::lane() < rows) bits[device::lane() * words + w] &= ~nowhere;
    }
    device::sync_block();
    // A word of a row: without the tokens that no row lists, to its place in the list.
    for (int i = thread; i < rows * words; i += kListThreads) {
      const int r = i / words, w = i - r * words;
      const uint32_t all = any_row[w];
      uint32_t packed = 0;
      for (uint32_t rest = bits[i]; rest;) {
        const uint32_t lowest = rest & (~rest + 1), run = rest & ~(rest + lowest);
        packed |= run / lowest << device::popcount(all & (lowest - 1));
        rest &= ~run;
      }
      if (!packed) continue;
      const uint32_t at = before[w], shift = at % kBits;
      uint32_t* const to = row_masks + r * list_words + int(at / kBits);
      device::atomic_or(to, packed << shift);
      if (shift && packed >> (kBits - shift)) device::atomic_or(to + 1, packed >> (kBits - shift));
    }
  }
  if (thread == 0) u.counts[group] = shared_tokens ? count : kRowByRow;
  if (!shared_tokens) return;
  device::sync_block();
  const int tiles = (count + kTile - 1) / kTile + kTilesBehind;
  for (int i = count + thread; i < tiles * kTile; i += kListThreads) places[i] = Place{0, 0};
  uint32_t* const masks = u.masks[group * (u.room / kTile) * u.rows].half;
  for (int i = thread; i < tiles * u.rows * 2; i += kListThreads) {
    const int tile = i / 2 / u.rows, r = i / 2 - tile * u.rows;
    masks[i] = row_masks[r * list_words + tile * 2 + i % 2];
  }
}

}  // namespace
}  // namespace qsa
