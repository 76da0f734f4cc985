// SPDX-License-Identifier: Apache-2.0
// The first step of attend_union_sm_80.cu, which alone includes this: a block a group of rows finds which tokens its
// rows list together, and whether it pays to read them together.
#pragma once

#include "device/nvidia.h"
#include "qsa/common.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kMaxRows = 8;  // of a group: bits of a list entry
constexpr uint32_t kRowBits = (1u << kMaxRows) - 1;
// A token of the list costs this share of what a token of a single row costs in the row kernel.
constexpr float kUnionCost = 1.15f;
constexpr int kListThreads = 512;
constexpr int kListRows = 4;
constexpr int kListAhead = 4;       // neighbouring tokens of a row that a thread takes at once
constexpr int kWindowWords = 1024;  // of a row's bitmap: tokens that are sorted out at once
constexpr int kWindow = kWindowWords * 32;

// A token that some row of the group lists. `rows` 0: none is live.
struct alignas(8) Entry {
  uint32_t page;
  uint32_t place_rows;  // place in the page << kMaxRows | rows, a bit a row of the group
};

struct Union {
  int rows;      // of a group
  int group;     // query heads of a KV head
  int kv_heads;
  int64_t groups;
  Entry* entries;   // [groups, rows * T]
  int32_t* counts;  // [groups]: entries, or kRowByRow
  uint8_t* served;  // [R,Hkv]
  float scale;      // D^-0.5 * log2(e)
  bool packed_output;
};
constexpr int32_t kRowByRow = -1;

DEVICE_KERNEL_BLOCKS(kListThreads, 2) list_kernel(AttendParams p, Union u) {
  DEVICE_SHARED(uint32_t, bits, kMaxRows * kWindowWords);
  DEVICE_SHARED(int, scratch, 32);
  const int thread = device::thread();
  const int64_t group = device::block_x(), first_row = group * u.rows;
  const int rows = int(smaller(u.rows, p.q.size[0] - first_row));
  const int64_t width = p.tokens.size[1];
  const uint32_t page_size = uint32_t(p.k_cache.size[1]);
  const int64_t capacity = smaller(p.block_table.size[1] * p.k_cache.size[1], INT32_MAX);
  const int64_t request = load_index(p.token_to_req, first_row);

  for (int i = thread; i < rows * u.kv_heads; i += kListThreads)
    u.served[first_row * u.kv_heads + i] = 0;
  bool together = request >= 0 && request < p.block_table.size[0];
  for (int r = 1; r < rows; ++r)
    together = together && load_index(p.token_to_req, first_row + r) == request;

  // All listed tokens, kListAhead neighbours of a row a thread: visit(row, tokens). -1 stands for
  // what is none.
  const auto each_tokens = [&](auto visit) {
    for (int from = 0; together && from < rows; from += kListRows)
      for (int64_t base = thread * kListAhead; base < width; base += kListThreads * kListAhead) {
        int token[kListRows][kListAhead];  // of several rows, so that one wait is for all
        DEVICE_UNROLL
        for (int r = 0; r < kListRows; ++r)
          DEVICE_UNROLL
          for (int i = 0; i < kListAhead; ++i) {
            const bool listed = from + r < rows && base + i < width;
            const int64_t t = listed ? load_index(p.tokens, first_row + from + r, base + i) : -1;
            token[r][i] = t >= 0 && t < capacity ? int(t) : -1;
          }
        DEVICE_UNROLL
        for (int r = 0; r < kListRows; ++r)
          if (from + r < rows) visit(from + r, token[r]);
      }
  };
  int last_window = together ? 0 : -1;
  if (capacity > kWindow) {
    each_tokens([&](int, const int (&token)[kListAhead]) {
      for (const int t : token) last_window = device::max(last_window, t < 0 ? -1 : t / kWindow);
    });
    last_window = device::block_max(last_window, scratch);
  }

  Entry* entries = u.entries + group * u.rows * width;
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
    constexpr int kPerThread = kWindowWords / kListThreads;
    int own = 0;
    for (int w = thread * kPerThread; w < (thread + 1) * kPerThread; ++w) {
      uint32_t any = 0;
      for (int r = 0; r < rows; ++r) any |= bits[r * kWindowWords + w];
      own += device::popcount(any);
    }
    int through = own;
    for (int step = 1; step < device::kWave; step *= 2) {
      const int lower = device::shuffle_up(through, step);
      if (device::lane() >= step) through += lower;
    }
    if (device::lane() == device::kWave - 1) scratch[device::wave()] = through;
    device::sync_block();
    const int first = count;
    int next = count + through - own;
    for (int w = 0; w < device::waves(); ++w) {
      if (w < device::wave()) next += scratch[w];
      count += scratch[w];
    }
    // Tokens first, because words hold few or many of them, and then a token a thread.
    for (int w = thread * kPerThread; w < (thread + 1) * kPerThread; ++w) {
      uint32_t any = 0;
      for (int r = 0; r < rows; ++r) any |= bits[r * kWindowWords + w];
      for (; any; any &= any - 1) entries[next++].page = uint32_t(w * 32 + device::first_lane(any));
    }
    device::sync_block();
    for (int i = first + thread; i < count; i += kListThreads) {
      const int at = int(entries[i].page);
      uint32_t listing = 0;
      for (int r = 0; r < rows; ++r)
        listing |= (bits[r * kWindowWords + at / 32] >> at % 32 & 1) << r;
      const uint32_t token = uint32_t(window) * kWindow + uint32_t(at);
      const uint32_t column = token / page_size, place = token % page_size;
      const int64_t page = live_page(p.block_table, request, column, p.k_cache.size[0]);
      entries[i] = page < 0 ? Entry{0, 0} : Entry{uint32_t(page), place << kMaxRows | listing};
    }
  }
  device::sync_block();
  listed = device::block_sum(listed, scratch);
  device::sync_block();
  twice = device::block_sum(twice, scratch);
  if (thread == 0) {
    const bool pays = float(count) * kUnionCost <= float(listed);
    u.counts[group] = together && twice == 0 && pays ? count : kRowByRow;
  }
}

}  // namespace
}  // namespace qsa
