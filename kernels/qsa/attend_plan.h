// SPDX-License-Identifier: Apache-2.0
// How attend_sm_80.cu, which alone includes this, is cut into blocks, and what lies where in their
// shared memory. Host and device.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

#include "device/nvidia.h"
#include "qsa/divider.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

using Chunk = Pack<uint32_t>;  // 16 bytes, eight elements
using Four = Pack<float>;

constexpr int kHeads = 16;                     // of a KV head at most: rows of the instruction
constexpr int kTile = 16;                      // tokens
constexpr int kTiles = device::kWave / kTile;  // that a wave looks up at once
constexpr int kWavesOfProcessor = 8;           // the output takes half of the registers
constexpr int kMaxSplits = 128;
constexpr int kShortWaves = 4;      // of a block of attend_short.h
constexpr int kMergedInPlace = 48;  // heads of all splits at most
constexpr float kSlack = 8;         // a weight may be up to 2^8 before all sums are rescaled

struct Statistics {
  float top, total;  // what scores are relative to; sum of the weights, NaN where the head is
};

// Ids of either width; strides in words.
struct Ids {
  const int32_t* words;
  int64_t row, step;
  bool wide;
};

// What the kernel reads before its first copy stands at the front and close together: parameters
// too come from memory, a line at a time.
struct Plan {
  Ids tokens, pages;
  const int32_t* requests;
  int64_t request_step;
  const uint8_t* served;
  const Chunk *queries, *keys, *values;
  int64_t query_row, query_head, key_head, value_head;    // strides in chunks
  uint32_t key_page, key_token, value_page, value_token;  // the same
  int rows, kv_heads, group;                              // query heads of a KV head
  int splits, split_tokens;
  int width, table_rows, table_columns, cache_pages, page_size;
  Divider by_rows{1}, by_kv_heads{1}, by_splits{1}, by_page_size{1};
  bool wide_requests;
  bool heads_apart;        // all rows of a KV head before those of the next
  bool merge_launch;       // partial results are merged by a second launch, else by the last block
  bool packed_output;      // four neighbours of the output may be stored at once
  float scale;             // D^-0.5 * log2(e)
  int waves;               // of a block
  bool short_tiles;        // attend_short.h: a wave has one tile at most
  float* partial;          // [R*Hkv, splits, group, D], sums of weighted values; null: one split
  Statistics* statistics;  // [R*Hkv, splits, group]
  uint64_t* arrivals;      // [R*Hkv]: tag + blocks that are done
  uint64_t tag;            // of this call; its low bits are zeros
};

template <int kDims, int kWaves, int kSlots>
struct Layout {
  static constexpr int kRow = kDims / 8;      // chunks of a token
  static constexpr int kSlot = kTile * kRow;  // chunks
  static constexpr int kRings = 16 * kRow;    // behind the queries
  static constexpr int kStatistics = kRings + kWaves * kSlots * kSlot;
  static constexpr int kPlaces = kStatistics + kWaves * kHeads / 2;
  static constexpr int kPlacesOfWave = 2 * device::kWave / 4;  // of keys, then of values
  static constexpr int kChunks = kPlaces + kWaves * kPlacesOfWave;
  static constexpr int kPitch = kDims + 8;  // floats of a head's output; other banks for each
  static_assert(kHeads * kPitch <= kSlots * kSlot * 4, "a wave's output replaces its ring");
};

constexpr uint64_t kCountBits = 16;

// A number that no other call has, above a count of blocks.
uint64_t fresh_tag() {
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return next.fetch_add(0x9e3779b97f4a7c15u) << kCountBits;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int kDims>
constexpr int kSlotsOf = kDims == 256 ? 3 : 5;

// With room for 16 query heads.
size_t shared_bytes(int64_t dims, int waves) {
  const int chunks = dims == 256 ? (waves == 8 ? Layout<256, 8, kSlotsOf<256>>::kChunks
                                               : Layout<256, 4, kSlotsOf<256>>::kChunks)
                                 : (waves == 8 ? Layout<128, 8, kSlotsOf<128>>::kChunks
                                               : Layout<128, 4, kSlotsOf<128>>::kChunks);
  return chunks * sizeof(Chunk);
}

// Waves of a block and splits of a row. A model of the time in microseconds with the rates of an
// H200; other devices differ in all of them alike. Blocks that run together share the memory's
// rate, and one alone cannot use all of it; a block begins with three dependent loads.
void choose_blocks(Plan& plan, int64_t units, int64_t tokens, int64_t dims, bool whole_rows) {
  constexpr int64_t kReserved = 1024;  // shared memory that each block costs besides its own
  const int64_t processors = device::multiprocessors();
  const int64_t room = device::shared_bytes_of_block() + kReserved;
  const double token_kb = double(dims) * 4 / 1024;
  double best = 0;
  for (const int waves : {4, 8}) {
    const int64_t fit = std::min<int64_t>(
        kWavesOfProcessor / waves, room / (int64_t(shared_bytes(dims, waves)) + 2 * kReserved));
    if (fit == 0) continue;
    int64_t most_splits = 1;
    if (!whole_rows)
      most_splits = waves == 8 ? kMergedInPlace / plan.group
                               : std::min<int64_t>(kMaxSplits, divide_up(tokens, 32));
    for (int64_t splits = 1; splits <= most_splits; ++splits) {
      const int64_t each = divide_up(tokens, splits);
      if (divide_up(tokens, each) != splits) continue;
      const int64_t blocks = std::max<int64_t>(1, units * splits), at_once = processors * fit;
      // The processor with the most blocks is the last one, and its blocks wait for each other.
      const double shared = double(divide_up(std::min(blocks, at_once), processors));
      const double rate = std::min(waves == 8 ? 45.0 : 28.0, 30.0 / shared);
      const int64_t parts = splits * plan.group;
      const double by_launch =
          3 + 0.15 * double(splits) + double(units * plan.group) / double(processors) / 2.9;
      const double in_place = parts <= kMergedInPlace ? 4 + 0.04 * double(parts) : by_launch + 1;
      const double merge = splits == 1 ? 0 : std::min(by_launch, in_place);
      const int64_t tiles = divide_up(divide_up(each, waves), kTile);  // of a wave
      // Of many tiles, the copies hide the arithmetic of most.
      const double block = (waves == 8 ? 7 : 5) + double(each) * token_kb / rate +
                           shared * double(std::min<int64_t>(tiles, 5));
      const double time = double(divide_up(blocks, at_once)) * block + merge;
      if (plan.splits != 0 && time >= best) continue;
      best = time;
      plan.waves = waves;
      plan.splits = int(splits);
      plan.split_tokens = int(each);
      plan.merge_launch = splits > 1 && by_launch < in_place;
    }
  }
  if (plan.splits == 0)
    throw device::Unsupported("a block needs " + std::to_string(shared_bytes(dims, 4)) +
                              " bytes of shared memory and may have " +
                              std::to_string(device::shared_bytes_of_block()) + " on this device");
  // Few blocks, none of which shares a processor: what counts is how soon one is done. Measured: 1
  // and 2 rows of 2 KV heads.
  const int64_t short_tokens = kShortWaves * kTile;
  if (plan.merge_launch && plan.waves == 4 && plan.split_tokens <= short_tokens + kTile) {
    const int64_t splits = divide_up(tokens, short_tokens);
    if (splits <= kMaxSplits && units * splits <= processors) {
      plan.short_tiles = true;
      plan.split_tokens = int(divide_up(tokens, splits));
      plan.splits = int(divide_up(tokens, plan.split_tokens));
    }
  }
  plan.by_splits = Divider(uint32_t(plan.splits));
}

// A stride in chunks. All tokens have to lie within 2^32 chunks (64 GiB) behind the first one.
uint32_t chunks_of(const Tensor<4>& cache, int dim) {
  int64_t reach = 0;
  for (int d = 0; d < 2; ++d) {
    if (cache.size[d] > 1 && cache.stride[d] < 0)
      throw device::Unsupported("k_cache or v_cache has a negative stride");
    if (cache.size[d] > 1) reach += (cache.size[d] - 1) * (cache.stride[d] / 8);
  }
  if (reach > UINT32_MAX)
    throw device::Unsupported("the pages of k_cache or v_cache are spread over more than 64 GiB");
  return cache.size[dim] > 1 ? uint32_t(cache.stride[dim] / 8) : 0;
}

template <int kRank>
Ids ids_of(const Tensor<kRank>& t) {
  const bool wide = t.dtype == TK_I64;
  const int64_t words = wide ? 2 : 1;
  return {static_cast<const int32_t*>(t.data), t.stride[0] * words, t.stride[kRank - 1] * words,
          wide};
}

// The same for the workspace query (no addresses yet) and for the run.
Plan make_plan(const AttendParams& p, device::Carver& carver) {
  const int64_t rows = p.q.size[0], heads = p.q.size[1], dims = p.q.size[2];
  const int64_t kv_heads = p.k_cache.size[2], group = heads / kv_heads;
  if (dims != 128 && dims != 256)
    throw device::Unsupported("the head dimension is " + std::to_string(dims) +
                              ": this kernel takes 128 and 256");
  if (group > kHeads)
    throw device::Unsupported("a KV head has " + std::to_string(group) +
                              " query heads: this kernel takes up to 16");
  if (!dense_runs(p.q, 16) || !dense_runs(p.k_cache, 16) || !dense_runs(p.v_cache, 16))
    throw device::Unsupported(
        "the heads of q, k_cache or v_cache are not dense or not aligned to 16 bytes");
  if (p.k_cache.size[0] > INT32_MAX || p.k_cache.size[1] > INT32_MAX ||
      p.block_table.size[1] > INT32_MAX / p.k_cache.size[1])
    throw device::Unsupported("a block table that spans more than 2^31 tokens");
  constexpr int64_t kMost = INT32_MAX - 1024;  // the last tile may reach beyond
  if (rows > kMost || p.tokens.size[1] > kMost || p.block_table.size[0] > kMost)
    throw device::Unsupported("more than 2^31 rows, tokens of a row or requests");
  Plan plan{};
  plan.tokens = ids_of(p.tokens);
  plan.pages = ids_of(p.block_table);
  const Ids requests = ids_of(p.token_to_req);
  plan.requests = requests.words;
  plan.request_step = requests.step;
  plan.wide_requests = requests.wide;
  plan.served = p.served;
  plan.queries = static_cast<const Chunk*>(p.q.data);
  plan.keys = static_cast<const Chunk*>(p.k_cache.data);
  plan.values = static_cast<const Chunk*>(p.v_cache.data);
  plan.query_row = p.q.stride[0] / 8;
  plan.query_head = p.q.stride[1] / 8;
  plan.key_head = p.k_cache.stride[2] / 8;
  plan.value_head = p.v_cache.stride[2] / 8;
  plan.rows = int(rows);
  plan.width = int(p.tokens.size[1]);
  plan.table_rows = int(p.block_table.size[0]);
  plan.table_columns = int(p.block_table.size[1]);
  plan.cache_pages = int(p.k_cache.size[0]);
  plan.page_size = int(p.k_cache.size[1]);
  plan.by_page_size = Divider(uint32_t(plan.page_size));
  plan.by_kv_heads = Divider(uint32_t(kv_heads));
  plan.by_rows = Divider(uint32_t(std::max<int64_t>(1, rows)));
  plan.kv_heads = int(kv_heads);
  plan.group = int(group);
  plan.scale = float(1.4426950408889634 / std::sqrt(double(dims)));
  // Many rows of a request share tokens: half of them at a time may stay in the L2.
  plan.heads_apart = rows > 8 * p.block_table.size[0];
  plan.packed_output = dense_runs(p.output, 8);
  plan.key_page = chunks_of(p.k_cache, 0);
  plan.key_token = chunks_of(p.k_cache, 1);
  plan.value_page = chunks_of(p.v_cache, 0);
  plan.value_token = chunks_of(p.v_cache, 1);
  const int64_t units = rows * kv_heads;
  choose_blocks(plan, units, p.tokens.size[1], dims, p.served != nullptr);
  blocks(units * plan.splits);  // refuses more than fit a grid
  if (plan.splits > 1) {
    plan.partial = carver.take<float>(uint64_t(units * plan.splits * group * dims));
    plan.statistics = carver.take<Statistics>(uint64_t(units * plan.splits * group));
    plan.arrivals = carver.take<uint64_t>(uint64_t(units));
  }
  return plan;
}

}  // namespace
}  // namespace qsa
