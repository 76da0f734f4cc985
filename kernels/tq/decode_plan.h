// SPDX-License-Identifier: Apache-2.0
// What the pass over the cache of a fast decode (decode_stream.h) is told, and how its blocks find
// and copy their stages.
#pragma once

#include "tq/decode_fragments.h"
#include "tq/decode_schedule.h"

namespace tq {

// Always 8 waves, also where there are fewer head tiles: copies step by a constant then. Registers
// bind: at 128 a thread two blocks fit a multiprocessor, and 128 dimensions fit those; of 256, two
// waves take half each and add up their scores. (A ninth wave that only copies would leave 96:
// registers are shared out in fours of waves.)
inline constexpr int kWaves = 8, kStreamThreads = kWaves * device::kWave;
inline constexpr int kMostRing = 4;
// Blocks of a multiprocessor. Of 16 columns a wave needs more registers (200; with 128 it spills).
inline constexpr int stream_blocks(int columns) { return columns == 16 ? 1 : 2; }

// How a tile comes from the cache: `runs` runs of contiguous bytes that are laid end to end in
// shared memory, where a token and a KV head then have their own strides.
struct TileLayout {
  int runs, run_bytes;
  int64_t run_stride;
  int bytes;                      // of all runs
  int last_bytes;                 // of a page's last tile, which may have fewer tokens
  int64_t bytes_of_tile;          // between tiles of a page, in the cache
  int token_stride, head_stride;  // in shared memory
};

struct StreamParams {
  Schedule schedule;
  const uint8_t* cache;
  int64_t blocks, block_stride;  // of the cache
  TileLayout tile;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  bool norm_correction;
  const uint32_t* queries;  // decode_queries.h
  const float* gains;
  float fp8_factor;
  float* partial;  // [2 * parts + B][Hq][head_dim]: decode_schedule.h
  float* partial_lse;
  int query_heads, group;
  int tiles, tile_heads;  // of a KV head: tiles of at most tile_heads query heads
  int block_tiles;        // of these, how many a block takes: all, or one (block_y)
  int head_tiles;         // of a block: KV heads * block_tiles
  int row_tiles;          // of a sequence: KV heads * tiles
  int halves;             // of the dimensions: 2 for 256
  qsa::Divider by_units{1}, by_block_tiles{1};  // units: of a block, head_tiles * halves
  int wave_tiles;  // tiles that a stage has beside each other, for waves
  int depth;       // tiles of a wave in a stage: stage_tiles = wave_tiles * depth
  int ring;        // stages in shared memory
  int merge_at, scores_at, queries_at, ring_at;  // in shared memory, behind the pair table
  bool bulk;                                     // decode_heads_stream.h: copies are bulk copies
  int sets;  // the same: teams of a KV head, each with tiles and results of its own
};

// Floats that a lane hands over where waves share a head: its state.
inline constexpr int merge_floats(int wave_dim, bool wide) {
  return (wide ? wave_dim / 2 : wave_dim / 4) + 7;
}

// What all waves know of the stages that come next, up to a waveful of tiles of one sequence.
struct TileInfo {
  int64_t offset;   // in the cache
  int bytes, live;  // to copy, and tokens; 0: no such tile, or no such page
};
struct Batch {
  int row, first, count;  // of the sequence, its first stage, and how many
  int stages, tokens;     // of the whole sequence
  TileInfo tiles[device::kWave];
};
// A stage is copied up to kMostRing - 1 turns before its own, and what is behind it is planned
// then.
inline constexpr int kBatches = kMostRing + 2;

// Copies `bytes` of a tile that is one run, 16 bytes a thread and step; `to` and `from` are the
// thread's own.
DEVICE_FUNCTION void copy_run(int bytes, SharedAddress to, const uint8_t* from) {
  constexpr int kStep = kStreamThreads * 16;
  int left = bytes - device::thread() * 16;
  if (left > 0) device::copy_async16_at<0>(to, from);
  if (left > kStep) device::copy_async16_at<kStep>(to, from);
  if (left > 2 * kStep) device::copy_async16_at<2 * kStep>(to, from);
  if (left > 3 * kStep) device::copy_async16_at<3 * kStep>(to, from);
  DEVICE_ROLLED
  while (left > 4 * kStep) {
    left -= 4 * kStep, to += 4 * kStep, from += 4 * kStep;
    device::copy_async16_at<0>(to, from);
    if (left > kStep) device::copy_async16_at<kStep>(to, from);
    if (left > 2 * kStep) device::copy_async16_at<2 * kStep>(to, from);
    if (left > 3 * kStep) device::copy_async16_at<3 * kStep>(to, from);
  }
}
// One of several runs.
DEVICE_FUNCTION void copy_runs(const TileLayout& tile, int bytes, SharedAddress to,
                               const uint8_t* from) {
  DEVICE_ROLLED
  for (int at = device::thread() * 16; at < bytes; at += kStreamThreads * 16) {
    const int run = at / tile.run_bytes;
    device::copy_async16_at<0>(to + static_cast<uint32_t>(at),
                               from + run * tile.run_stride + (at - run * tile.run_bytes));
  }
}

// Finds the stages of a block, one batch after another; the work of one wave.
class Planner {
 public:
  // `next_ids`: an int of each lane, in shared memory.
  DEVICE_FUNCTION Planner(const StreamParams& p, int* next_ids) : p_(p), next_ids_(next_ids) {}

  DEVICE_FUNCTION void begin(const Place& place, Batch* to) const {
    enter(place.row, place.stage, to);
  }
  // The batch behind `last`.
  DEVICE_FUNCTION void plan(const Batch& last, Batch* to) const {
    int row = last.row;
    const int stage = last.first + last.count;
    if (stage < last.stages)
      return fill(row, stage, last.stages, last.tokens, next_ids_[device::lane()], to);
    do row += 1;
    while (stages_of(p_.schedule, row) == 0);
    enter(row, 0, to);
  }

 private:
  DEVICE_FUNCTION void enter(int row, int stage, Batch* to) const {
    const int tokens = tokens_of(p_.schedule, row);
    fill(row, stage, stages_of(p_.schedule, row), tokens, load_id(row, tokens, stage), to);
  }
  // A lane has a tile. Page ids are loaded a batch ahead, but for the first of a sequence.
  DEVICE_FUNCTION void fill(int row, int stage, int stages, int tokens, int id, Batch* to) const {
    const Schedule& s = p_.schedule;
    const int lane = device::lane(), tile = stage * s.stage_tiles + lane;
    const int count = device::min(device::kWave / s.stage_tiles, stages - stage);
    const int in_page = tile - s.page_of(tile) * s.page_tiles;
    TileInfo info{};
    if (id >= 0) {
      info.offset = id * p_.block_stride + in_page * p_.tile.bytes_of_tile;
      // The bytes behind a page are another page's, or nobody's.
      info.bytes = in_page + 1 == s.page_tiles ? p_.tile.last_bytes : p_.tile.bytes;
      info.live = tokens_from(s, tokens, tile);
    }
    to->tiles[lane] = info;
    if (lane == 0)
      to->row = row, to->first = stage, to->count = count, to->stages = stages, to->tokens = tokens;
    next_ids_[lane] = load_id(row, tokens, stage + count);
  }
  // Of the lane's tile of the batch at `stage`; -1: none.
  DEVICE_FUNCTION int load_id(int row, int tokens, int stage) const {
    const Schedule& s = p_.schedule;
    const int tile = stage * s.stage_tiles + device::lane();
    if (tile >= tiles_of(s, tokens)) return -1;
    const int64_t id =
        load_index(p_.table.ids.data, p_.table.ids.dtype,
                   row * p_.table.ids.stride[0] + s.page_of(tile) * p_.table.ids.stride[1]);
    return id < 0 || id >= p_.blocks ? -1 : static_cast<int>(id);
  }

  const StreamParams& p_;
  int* const next_ids_;
};

}  // namespace tq
