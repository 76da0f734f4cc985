// SPDX-License-Identifier: Apache-2.0
// How a fixed grid shares the tokens of all sequences evenly, whatever their lengths. A page is cut
// into tiles of 16 tokens (the last may be shorter); the tiles of all sequences are laid end to end
// in stages, and block i of `parts` takes the stages [first_stage(i), first_stage(i + 1)). Lengths
// are read on the device, so a captured launch stays right when they change.
//
// Results of a block: slot 2i of its workspace for the sequence that it found begun, slot 2i + 1
// for the one that it leaves unended; a sequence that it has whole goes to slot 2 * parts + row.
#pragma once

#include "qsa/divider.h"
#include "tq/elements.h"

namespace tq {

inline constexpr int kTileTokens = 16;

DEVICE_FUNCTION int divide(int n, const qsa::Divider& by) {
  return static_cast<int>(by(static_cast<uint32_t>(n)));
}

struct Schedule {
  Strided<1> seq_lens;
  int capacity;  // tokens the page table can hold; a longer sequence ends there
  int batch;
  int page, page_tiles;  // tokens and tiles of a page
  int stage_tiles;
  int parts;  // blocks of the grid
  qsa::Divider by_page{1}, by_page_tiles{1}, by_stage_tiles{1};

  DEVICE_FUNCTION int page_of(int tile) const { return divide(tile, by_page_tiles); }
};

// An index as it is loaded: what it is worth is asked when it is needed, so that loads do not wait
// for each other.
struct LoadedIndex {
  uint32_t low = 0, high = 0;

  DEVICE_FUNCTION void load(const void* data, tk_dtype dtype, int64_t at) {
    const bool wide = dtype == TK_I64;
    const auto* const words = static_cast<const uint32_t*>(data) + (at << wide);
    low = words[0];
    if (wide) high = words[1];
  }
  DEVICE_FUNCTION int64_t value(tk_dtype dtype) const {
    if (dtype == TK_I64) return static_cast<int64_t>(uint64_t{high} << 32 | low);
    return static_cast<int32_t>(low);
  }
};

DEVICE_FUNCTION int tokens_within(const Schedule& s, int64_t tokens) {
  return static_cast<int>(tokens < 0 ? 0 : tokens < s.capacity ? tokens : s.capacity);
}
DEVICE_FUNCTION int tokens_of(const Schedule& s, int row) {
  return tokens_within(s,
                       load_index(s.seq_lens.data, s.seq_lens.dtype, row * s.seq_lens.stride[0]));
}
DEVICE_FUNCTION int tiles_of(const Schedule& s, int tokens) {
  if (s.page == s.page_tiles * kTileTokens) return (tokens + kTileTokens - 1) / kTileTokens;
  const int pages = divide(tokens, s.by_page);
  return pages * s.page_tiles + (tokens - pages * s.page + kTileTokens - 1) / kTileTokens;
}
// Tokens of a sequence from a tile on, 16 at most.
DEVICE_FUNCTION int tokens_from(const Schedule& s, int tokens, int tile) {
  if (s.page == s.page_tiles * kTileTokens)
    return device::min(tokens - tile * kTileTokens, kTileTokens);
  const int page = s.page_of(tile), in_page = (tile - page * s.page_tiles) * kTileTokens;
  return device::min(device::min(s.page - in_page, tokens - page * s.page - in_page), kTileTokens);
}
DEVICE_FUNCTION int stages_of_tokens(const Schedule& s, int tokens) {
  return divide(tiles_of(s, tokens) + s.stage_tiles - 1, s.by_stage_tiles);
}
DEVICE_FUNCTION int stages_of(const Schedule& s, int row) {
  return stages_of_tokens(s, tokens_of(s, row));
}

// Shares of `total` stages: the first `longer` parts have one more than `each`.
struct Cut {
  int parts, each, longer;
};
DEVICE_FUNCTION Cut cut_of(const Schedule& s, int total) {
  const int parts = device::min(total, s.parts), each = total / parts;
  return {parts, each, total - each * parts};
}
DEVICE_FUNCTION int first_stage(const Cut& c, int part) {
  return part * c.each + device::min(part, c.longer);
}
DEVICE_FUNCTION int part_of(const Cut& c, int stage) {
  const int in_longer = c.longer * (c.each + 1);
  return stage < in_longer ? stage / (c.each + 1) : c.longer + (stage - in_longer) / c.each;
}

// A wave's view of the stages: lane i holds those of a run of sequences.
struct Runs {
  int first, end;  // sequences of this lane
  int before;      // stages of all sequences before them
  int stages;      // of this lane's sequences
  int total;       // of all
};

DEVICE_FUNCTION Runs runs_of(const Schedule& s) {
  const int each = (s.batch + device::kWave - 1) / device::kWave, lane = device::lane();
  Runs r{};
  r.first = device::min(lane * each, s.batch);
  r.end = device::min(r.first + each, s.batch);
  constexpr int kAhead = 4;  // lengths are under way at once
  DEVICE_ROLLED
  for (int row = r.first; row < r.end; row += kAhead) {
    LoadedIndex tokens[kAhead];
    DEVICE_UNROLL
    for (int a = 0; a < kAhead; ++a)
      tokens[a].load(s.seq_lens.data, s.seq_lens.dtype,
                     device::min(row + a, s.batch - 1) * s.seq_lens.stride[0]);
    DEVICE_UNROLL
    for (int a = 0; a < kAhead; ++a)
      if (row + a < r.end)
        r.stages += stages_of_tokens(s, tokens_within(s, tokens[a].value(s.seq_lens.dtype)));
  }
  int sum = r.stages;
  DEVICE_UNROLL
  for (int delta = 1; delta < device::kWave; delta *= 2) {
    const int lower = device::shuffle_up(sum, delta);
    if (lane >= delta) sum += lower;
  }
  r.before = sum - r.stages;
  r.total = device::shuffle(sum, device::kWave - 1);
  return r;
}

struct Place {
  int row, stage;  // of a sequence, and within it
};

// Where the stage of all sequences lies; stage < total. The result is the wave's.
DEVICE_FUNCTION Place find_stage(const Schedule& s, const Runs& r, int stage) {
  const bool mine = stage >= r.before && stage < r.before + r.stages;
  Place place{};
  if (mine) {
    place = {r.first, stage - r.before};
    DEVICE_ROLLED
    for (;; ++place.row) {
      const int stages = stages_of(s, place.row);
      if (place.stage < stages) break;
      place.stage -= stages;
    }
  }
  const int lane = device::first_lane(device::ballot(mine));
  return {device::shuffle(place.row, lane), device::shuffle(place.stage, lane)};
}

// Stages of all sequences before `row`.
DEVICE_FUNCTION int stages_before(const Schedule& s, const Runs& r, int row) {
  const bool mine = row >= r.first && row < r.end;
  int before = r.before;
  if (mine) DEVICE_ROLLED
  for (int i = r.first; i < row; ++i) before += stages_of(s, i);
  return device::shuffle(before, device::first_lane(device::ballot(mine)));
}

}  // namespace tq
