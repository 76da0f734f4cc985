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
inline constexpr int kMostStageTiles = 16;
inline constexpr int kStreamBlocks = 2;  // of a multiprocessor

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
  int tiles, tile_heads;             // of a KV head: tiles of at most tile_heads query heads
  int block_tiles;                   // of these, how many a block takes: all, or one (block_y)
  int head_tiles;                    // of a block: KV heads * block_tiles
  int halves;                        // of the dimensions: 2 for 256
  int wave_tiles;                    // tiles that a stage has beside each other, for waves
  int depth;                         // tiles of a wave in a stage: stage_tiles = wave_tiles * depth
  int ring;                          // stages in shared memory
  int merge_at, scores_at, ring_at;  // in shared memory, behind the pair table
};

// What all waves know of a stage.
struct StageInfo {
  int row, stage, stages;            // of the sequence; stage: which, stages: how many it has
  int tokens;                        // of the sequence
  int live[kMostStageTiles];         // tokens of its tiles; 0: no such tile, or no such page
  int64_t offsets[kMostStageTiles];  // of its tiles in the cache; -1: none
};

// Copies `bytes` of a tile, 16 bytes a thread and step.
DEVICE_FUNCTION void copy_tile(const TileLayout& tile, int bytes, SharedAddress to,
                               const uint8_t* from) {
  constexpr int kStep = kStreamThreads * 16;
  int left = bytes - device::thread() * 16;
  if (tile.runs == 1) {
    to += static_cast<uint32_t>(device::thread() * 16);
    from += device::thread() * 16;
    DEVICE_ROLLED
    for (; left > 0; left -= 4 * kStep, to += 4 * kStep, from += 4 * kStep) {
      device::copy_async16_at<0>(to, from);
      if (left > kStep) device::copy_async16_at<kStep>(to, from);
      if (left > 2 * kStep) device::copy_async16_at<2 * kStep>(to, from);
      if (left > 3 * kStep) device::copy_async16_at<3 * kStep>(to, from);
    }
  } else {
    DEVICE_ROLLED
    for (; left > 0; left -= kStep) {
      const int at = bytes - left, run = at / tile.run_bytes;
      device::copy_async16_at<0>(to + static_cast<uint32_t>(at),
                                 from + run * tile.run_stride + (at - run * tile.run_bytes));
    }
  }
}

// Finds the stages of a block, one after another; the work of one wave.
class Planner {
 public:
  DEVICE_FUNCTION explicit Planner(const StreamParams& p) : p_(p) {}

  // The stage behind `last`, or the one that `info` names already.
  DEVICE_FUNCTION void plan(const StageInfo* last, StageInfo* info) {
    int row, stage, stages, tokens;
    bool entered = true;  // a sequence that the stage before is not of
    if (last) {
      row = last->row, stage = last->stage + 1, stages = last->stages, tokens = last->tokens;
      entered = stage == stages;
      if (entered) {
        do row += 1;
        while (stages_of(p_.schedule, row) == 0);
        stage = 0;
      }
    } else {
      row = info->row, stage = info->stage;
      device::sync_wave();  // it is written below
    }
    if (entered) {
      tokens = tokens_of(p_.schedule, row);
      stages = stages_of(p_.schedule, row);
    }
    const int lane = device::lane(), tile = stage * p_.schedule.stage_tiles;
    const int in_batch = tile % device::kWave;
    if (entered || in_batch == 0) next_batch(row, tokens, tile / device::kWave, entered);
    if (lane >= in_batch && lane < in_batch + p_.schedule.stage_tiles)
      info->offsets[lane - in_batch] = offset_, info->live[lane - in_batch] = live_;
    if (lane == 0)
      info->row = row, info->stage = stage, info->stages = stages, info->tokens = tokens;
    device::sync_wave();
  }

 private:
  // A lane has a tile of a batch. Page ids are loaded a batch ahead, but for the first two of a
  // sequence, and not looked at before their turn.
  DEVICE_FUNCTION void next_batch(int row, int tokens, int batch, bool entered) {
    const int tiles = tiles_of(p_.schedule, tokens);
    const int64_t id = entered ? load_id(row, tiles, batch) : next_id_;
    next_id_ = load_id(row, tiles, batch + 1);
    const int in_page = (batch * device::kWave + device::lane()) % p_.schedule.page_tiles;
    offset_ =
        id < 0 || id >= p_.blocks ? -1 : id * p_.block_stride + in_page * p_.tile.bytes_of_tile;
    live_ = offset_ < 0
                ? 0
                : tokens_from(p_.schedule, tokens, batch * device::kWave + device::lane());
  }
  DEVICE_FUNCTION int64_t load_id(int row, int tiles, int batch) const {
    const int tile = batch * device::kWave + device::lane();
    if (tile >= tiles) return -1;
    return load_index(
        p_.table.ids.data, p_.table.ids.dtype,
        row * p_.table.ids.stride[0] + tile / p_.schedule.page_tiles * p_.table.ids.stride[1]);
  }

  const StreamParams& p_;
  int64_t offset_ = -1, next_id_ = -1;
  int live_ = 0;
};

}  // namespace tq
