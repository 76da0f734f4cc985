// SPDX-License-Identifier: Apache-2.0
// The host side of decode_sm_80.cu and its parts: how a call is laid out, and its workspace.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include "device/launch.h"
#include "device/op.h"
#include "tq/decode.h"
#include "tq/decode_few_plan.h"
#include "tq/decode_heads_stream.h"
#include "tq/decode_stream.h"

namespace tq::decode {

// How a call is laid out, from shapes and strides alone.
struct Plan {
  int batch, query_heads, kv_heads, head_dim, group;
  int tiles, tile_heads, columns;  // decode_queries.h
  bool wide;                       // decode_wide.h
  bool bulk;                       // decode_ring.h
  bool heads;                      // decode_heads.h
  int block_tiles, head_tiles, halves, wave_tiles, depth, ring;
  int sets;  // decode_heads_stream.h; 1 elsewhere
  int merge_at, scores_at, queries_at, ring_at, shared_bytes;
  int page, page_tiles, capacity, parts;
  int rows;
  int few_parts, few_waves;  // decode_few.h; 0: another form
  SlotFormat format;
  TileLayout tile;
};

inline void supported(bool yes, const std::string& because) {
  if (!yes) throw device::Unsupported("because " + because);
}

// Tokens of a page end to end with all their heads, or each head's tokens end to end.
inline TileLayout tile_layout(const TensorView& cache) {
  const int64_t page = cache.size(1), heads = cache.size(2), slot = cache.size(3);
  const int slot_bytes = static_cast<int>(slot), all = static_cast<int>(heads) * slot_bytes;
  supported(cache.stride(3) == 1 && cache.stride(0) % 16 == 0, "the cache has odd strides");
  TileLayout t{};
  t.bytes = kTileTokens * all;
  if (cache.stride(2) == slot && cache.stride(1) == slot * heads) {
    t.runs = 1;
    t.run_bytes = t.bytes;
    t.token_stride = all;
    t.head_stride = slot_bytes;
  } else {
    supported(cache.stride(1) == slot && cache.stride(2) % 16 == 0,
              "neither tokens nor heads of a page lie end to end");
    t.runs = static_cast<int>(heads);
    t.run_bytes = kTileTokens * slot_bytes;
    t.run_stride = cache.stride(2);
    t.token_stride = slot_bytes;
    t.head_stride = t.run_bytes;
  }
  supported(page % kTileTokens == 0 || (t.runs == 1 && page * all % 16 == 0),
            "pages of " + std::to_string(page) + " tokens end between 16-byte units");
  t.last_bytes = (static_cast<int>((page - 1) % kTileTokens) + 1) * all;
  t.bytes_of_tile = kTileTokens * cache.stride(1);
  return t;
}

// Tiles begin at lines of 128 bytes in the cache, mostly, and have to in shared memory: copies are
// 10 to 60 % slower where source and destination lie differently within a line.
inline int whole_lines(int bytes) { return (bytes + 127) / 128 * 128; }

// Lays out the shared memory of a block; whether two stages fit.
inline bool fits(Plan& p, int units) {
  const int key_bits = p.format.key_bits, alignment = pair_table_alignment(key_bits);
  p.merge_at = p.scores_at = pair_table_bytes(key_bits) + alignment - 16;
  if (p.wave_tiles > 1)
    p.scores_at += units * device::kWave * 4 * merge_floats(wave_dim(p.head_dim), p.wide);
  p.queries_at = p.ring_at = p.scores_at + (p.halves > 1 ? kScoresBytes : 0);
  if (p.wide) {
    p.queries_at = p.scores_at + kWaves * kWideFloats * 4;
    p.ring_at = p.queries_at + p.head_tiles * kWideQueryBytes;
  }
  p.ring_at = whole_lines(p.ring_at);
  // Two blocks of a multiprocessor hide each other's waits; one where two have no room.
  p.ring = 0;
  for (int blocks = stream_blocks(p.columns); blocks >= 1 && p.ring < 2; --blocks) {
    const int budget = static_cast<int>(device::shared_bytes_of_block()) / blocks - p.ring_at -
                       static_cast<int>(kBatches * sizeof(Batch) + kWaves * sizeof(WaveState) +
                                        (p.bulk ? kMostRing * sizeof(StageSlot) : 0)) -
                       1536;                  // the rest, and what a block costs
    const int tiles = budget / p.tile.bytes;  // that fit
    p.depth = p.wide || tiles >= 4 * p.wave_tiles ? 2 : 1;
    p.ring = tiles / (p.depth * p.wave_tiles);
    if (p.ring > kMostRing) p.ring = kMostRing;
    p.parts = device::multiprocessors() * blocks;
  }
  return p.ring >= 2;
}

// The same for decode_heads.h, so that `blocks` fit a multiprocessor.
inline void lay_out_heads(Plan& p, int blocks, bool many) {
  constexpr int kOfMultiprocessor = 1024;  // shared memory that each block costs beside its own
  const int stage = p.sets * kTeamTiles * p.tile.bytes;
  const int fixed = p.sets * p.head_tiles * team_bytes(p.format.key_bits, many) +
                    p.head_tiles * heads_query_bytes(p.format.key_bits, many);
  const int statics =
      static_cast<int>(kMostTeams * kTeamWaves * sizeof(HeadsWave) + device::kWave * sizeof(int) +
                       kMostRing * sizeof(device::BulkBarrier)) +
      128;  // up to the line where dynamic shared memory begins
  const int room =
      (static_cast<int>(device::shared_bytes_of_block()) + kOfMultiprocessor) / blocks -
      kOfMultiprocessor - statics;
  const auto ring_at = [&](int ring) {
    return whole_lines(fixed + heads_batches(ring) * static_cast<int>(sizeof(Batch)));
  };
  p.ring = kMostRing;
  while (p.ring >= 2 && ring_at(p.ring) + p.ring * stage > room) --p.ring;
  p.wave_tiles = p.sets * kTeamTiles;
  p.merge_at = 0;
  p.queries_at = p.sets * p.head_tiles * team_bytes(p.format.key_bits, many);
  p.scores_at = fixed;
  p.ring_at = ring_at(p.ring);
  p.parts = device::multiprocessors() * blocks;
}

// The same for decode_heads.h.
inline bool share_heads(Plan& p) {
  p.tiles = (p.group + kManyHeads - 1) / kManyHeads;
  p.tile_heads = (p.group + p.tiles - 1) / p.tiles;
  p.columns = p.tile_heads > kSomeHeads ? kManyHeads : kSomeHeads;
  const bool many = p.columns == kManyHeads;
  p.rows = p.batch * p.kv_heads * p.tiles * p.columns;
  p.block_tiles = p.kv_heads * p.tiles <= kMostTeams ? p.tiles : 1;
  p.head_tiles = p.kv_heads * p.block_tiles;
  if (p.head_tiles > kMostTeams) return false;
  p.halves = 1, p.depth = 1;
  p.ring = 0;
  // As many waves of a multiprocessor as there is room for; blocks hide each other's waits.
  for (int teams = kMostTeams / p.head_tiles; teams >= 1 && p.ring < 2; --teams)
    for (p.sets = 1; p.sets <= kMostSets && p.ring < 2; ++p.sets)
      if (teams % p.sets == 0) lay_out_heads(p, teams / p.sets, many);
  --p.sets;
  return p.ring >= 2;
}

// How heads and tiles are shared out over a block's waves; whether that fits.
inline bool share(Plan& p) {
  const int most_heads = p.wide ? kWideColumns : 8;  // of a tile
  p.tiles = (p.group + most_heads - 1) / most_heads;
  p.tile_heads = (p.group + p.tiles - 1) / p.tiles;
  if (p.wide)
    p.columns = kWideColumns;
  else
    p.columns = p.tile_heads <= 4 && p.head_dim >= 128 ? 4 : 8;  // fewer instances of small sizes
  p.rows = p.batch * p.kv_heads * p.tiles * p.columns;
  p.block_tiles = p.kv_heads * p.tiles * p.halves <= kWaves ? p.tiles : 1;
  p.head_tiles = p.kv_heads * p.block_tiles;
  const int units = p.head_tiles * p.halves;
  if (units > kWaves) return false;
  p.wave_tiles = 1;
  while (2 * p.wave_tiles * units <= kWaves) p.wave_tiles *= 2;
  while (!fits(p, units) && p.wave_tiles > 1) p.wave_tiles /= 2;  // fewer tiles at once
  return p.ring >= 2;
}

// f(layout) of the instance of decode_few that serves a plan; none does: false.
template <class F>
inline bool with_few(const Plan& p, F f) {
  const auto with_bits = [&](auto key, auto value) {
    constexpr std::integral_constant<int, 128> dim;
    constexpr std::integral_constant<int, 4> four;
    constexpr std::integral_constant<int, 8> eight;
    p.columns == 4 ? f(key, value, dim, four) : f(key, value, dim, eight);
    return true;
  };
  constexpr std::integral_constant<int, 3> k3;
  constexpr std::integral_constant<int, 4> k4;
  constexpr std::integral_constant<int, 8> k8;
  const bool v3 = p.format.value_bits == 3;
  if (p.head_dim != 128) return false;
  if (p.format.fp8) return v3 ? with_bits(k8, k3) : with_bits(k8, k4);
  if (p.format.key_bits == 4) return with_bits(k4, k4);
  return v3 ? with_bits(k3, k3) : with_bits(k3, k4);
}

// Whether blocks of one KV head serve: few sequences, whose results of all KV heads would else be
// much to merge.
inline void plan_few(Plan& p, const Args& a) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  const int units = p.kv_heads * p.tiles;
  if (p.batch == 0 || p.batch * units > kFewUnits || cache.stride(1) > 1 << 22) return;
  const auto far = [](int64_t stride) { return stride > INT32_MAX || stride < -INT32_MAX; };
  if (q.stride(2) != 1 || q.stride(1) % 4 != 0 || q.stride(0) % 4 != 0) return;
  for (const int i : {0, 1})
    if (far(q.stride(i)) || far(a.tensor("block_table").stride(i))) return;
  if (!p.format.fp8) {
    const TensorView pi = a.tensor("Pi");
    if (pi.stride(1) != 1 || pi.stride(0) % 4 != 0 || far(pi.stride(0))) return;
  }
  with_few(p, [&](auto key, auto value, auto dim, auto columns) {
    using At = FewLayout<key(), value(), dim(), columns()>;
    if (p.format.zero_at + 2 > At::kSlotBytes) return;  // keys with room between
    for (int waves = kFewWaves; waves >= 4; waves /= 2)
      if (At::bytes(waves) + kFewStaticBytes <= device::shared_bytes_of_block()) {
        p.few_waves = waves;
        p.few_parts = std::max(1, device::multiprocessors() / units);
        p.shared_bytes = At::bytes(waves);
        return;
      }
  });
}

// `few`: decode_few.h may serve.
inline Plan plan_of(const Args& a, bool few) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  const int64_t page = cache.size(1), slot = cache.size(3);
  const int64_t capacity = a.tensor("block_table").size(1) * page;
  // Found by random cases on an H200 (key_scale=30, up to 2.6 times the bound): sums of tensor
  // cores are cut, which only f32 outputs are exact enough to show where a few large scores decide.
  supported(q.dtype() != TK_F32, "f32 asks for more than sums of tensor cores hold");
  supported(
      q.size(2) == 64 || q.size(2) == 80 || q.size(2) == 96 || q.size(2) == 128 || q.size(2) == 256,
      "head_dim is none of 64, 80, 96, 128 and 256");
  supported(capacity <= INT32_MAX / 2 && cache.size(0) <= INT32_MAX &&
                q.size(0) * q.size(1) <= INT32_MAX / 64 && q.size(1) <= 1024 && slot <= 1 << 12,
            "the sizes are beyond 32 bits");
  Plan p{};
  p.format = slot_format(a, q.size(2));
  supported(slot % 2 == 0 && p.format.value_at % 2 == 0, "slots are not 2-byte aligned");
  if (p.format.fp8)
    supported(slot % 4 == 0 && p.format.value_at % 4 == 0, "fp8 keys are not 4-byte aligned");
  supported(p.format.fp8 || p.format.key_bits == 3 || p.format.value_bits == 4,
            "4-bit keys with 3-bit values are not tuned");
  p.tile = tile_layout(cache);
  p.capacity = static_cast<int>(capacity);
  supported(q.size(0) * ((capacity + kTileTokens - 1) / kTileTokens + 1) <= INT32_MAX / 16,
            "the tiles are beyond 32 bits");
  p.page = static_cast<int>(page);
  p.page_tiles = (p.page + kTileTokens - 1) / kTileTokens;
  p.batch = static_cast<int>(q.size(0));
  p.query_heads = static_cast<int>(q.size(1));
  p.kv_heads = static_cast<int>(cache.size(2));
  p.head_dim = static_cast<int>(q.size(2));
  p.group = p.query_heads / p.kv_heads;
  p.bulk = device::hopper_or_later() && p.head_dim == 128 && p.tile.runs == 1 &&
           p.tile.token_stride % 4 == 0;
  p.heads = p.head_dim == kHeadsDim && p.format.key_bits != 4;
  bool room = p.heads && share_heads(p);
  if (!room) {
    p.heads = false, p.sets = 1;
    p.wide = p.head_dim == kWideDim && !p.format.fp8 && p.group > 8;
    p.halves = p.head_dim / wave_dim(p.head_dim);
    room = share(p);
  }
  if (!room && p.wide) {
    p.wide = false;
    room = share(p);
  }
  supported(p.head_tiles * p.halves <= kWaves,
            "there are more KV heads than a block has waves for");
  supported(room, "two stages of " + std::to_string(p.tile.bytes * p.wave_tiles) +
                      " bytes do not fit shared memory");
  const int stage_tiles = p.wave_tiles * p.depth;
  p.bulk = p.bulk && stage_tiles <= kMostBulkTiles && p.wave_tiles * p.head_tiles == kWaves &&
           (p.columns != 4 || p.depth == 2);
  p.shared_bytes = p.ring_at + p.ring * p.depth * p.wave_tiles * p.tile.bytes;
  if (few) plan_few(p, a);
  return p;
}

struct Workspace {
  uint16_t* fragments;
  float* gains;
  float* partial;
  float* partial_lse;
  uint64_t* arrivals;  // of decode_few.h, as statistics
  Statistics* statistics;
};

inline Workspace carve(const Plan& p, device::Carver& carver) {
  Workspace w{};
  if (p.few_parts) {
    const int64_t units = int64_t{p.kv_heads} * p.tiles;
    const int64_t heads = (p.few_parts + p.batch) * units * kFewHeads;
    w.arrivals = carver.take<uint64_t>(p.batch * units);
    w.statistics = carver.take<Statistics>(heads);
    w.partial = carver.take<float>(heads * p.head_dim);
    return w;
  }
  const int64_t query_bytes =
      p.heads ? int64_t{p.rows} / p.columns *
                    heads_query_bytes(p.format.key_bits, p.columns == kManyHeads)
              : int64_t{4} * p.rows * p.head_dim;
  w.fragments = carver.take<uint16_t>(query_bytes / 2);
  w.gains = carver.take<float>(p.rows);
  const int64_t slots = (int64_t{2} * p.parts + p.batch) * p.sets;
  w.partial = carver.take<float>(slots * p.query_heads * p.head_dim);
  w.partial_lse = carver.take<float>(slots * p.query_heads);
  return w;
}

inline Schedule schedule_of(const Args& a, const Plan& plan, int stage_tiles, int parts) {
  Schedule s{strided<1>(a.tensor("seq_lens")),
             plan.capacity,
             plan.batch,
             plan.page,
             plan.page_tiles,
             stage_tiles,
             parts};
  s.by_page = qsa::Divider(static_cast<uint32_t>(plan.page));
  s.by_page_tiles = qsa::Divider(static_cast<uint32_t>(plan.page_tiles));
  s.by_stage_tiles = qsa::Divider(static_cast<uint32_t>(stage_tiles));
  return s;
}

// decode_few_sm_80.cu: the whole call, of a plan with few_parts.
void run_few(const device::OpCall& call, const Plan& plan, const Cache& cache, const Workspace& w);
// decode_heads_sm_80.cu: the pass over the cache, of a plan with heads.
void launch_heads(const Plan& plan, const StreamParams& s, void* stream);

}  // namespace tq::decode
