// SPDX-License-Identifier: Apache-2.0
// What the waves of encode_sm_80.cu, which alone includes this, share: their parameters and
// buffers, the vectors that a wave takes, and the way of a finished stage to the cache.
#pragma once

#include <algorithm>
#include <string>

#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/code_bins.h"
#include "tq/last_writer.h"
#include "tq/slot_stage.h"
#include "tq/split_rotation.h"

namespace tq::encode::sm_80 {

inline constexpr int kMostWaves = 8, kThreads = kMostWaves * device::kWave;
inline constexpr int kVectors = device::kWave;    // of a wave at a time: one a lane
inline constexpr int kMostVectors = 512;  // of a block
static_assert(kMostVectors + 2 <= kWriterTokens);
// Of blocks whose waves take eight vectors at a time, an element of T or more a register.
template <class T, int kDim>
inline constexpr int kStreamThreads = kDim * sizeof(T) > 256 ? 256 : 512;
inline constexpr int kMostRounds = 32;  // of a wave that takes eight vectors at a time

// Shared memory of a wave, in bytes: a tile of values (fp8: of keys too), rotated keys, and the
// stage.
inline constexpr int kSumPitch = 36;  // floats; rows start in different banks
inline constexpr int kSumBytes = kVectors * kSumPitch * 4;

struct Params {
  Source s;
  uint32_t* is_hadamard;  // whether Pi is one: told by encode_hadamard; in the workspace
  StageFormat stage;
  int stage_bytes;
  int tile_pitch;    // bytes
  int work;          // vectors of a block, whole pieces
  bool tiles_early;  // before the rotation is prepared
  int encoders;      // waves of a block that encode; the others only help to prepare
  int64_t vectors;   // N * Hk
  int step_tokens, step_heads;  // from a piece of a wave to its next one
  bool pages_join;              // the tokens of the cache follow each other
  bool words;                   // fields of the stage are aligned to 4 bytes
  float value_levels, value_levels_inverse;
  uint32_t value_radix;
  uint32_t value_wholes;  // exponents of the whole numbers, added up in packing
};

struct Buffers {
  uint8_t* tile;
  float* sums;
  uint8_t* stage;
};

// Lane i knows vector i of a piece of work.
struct Sources {
  int64_t key, value;  // offsets
};
struct Place {
  int64_t token, head;
};
DEVICE_FUNCTION Place place_of(const Params& p, int64_t vector) {
  if (vector >= p.vectors) vector = p.vectors - 1;
  const int64_t token = static_cast<uint32_t>(vector) / static_cast<uint32_t>(p.s.heads);
  return {token, vector - token * p.s.heads};
}
DEVICE_FUNCTION Sources find_sources(const Params& p, int64_t first) {
  const Place at = place_of(p, first + device::lane());
  return {at.token * p.s.key.stride[0] + at.head * p.s.key.stride[1],
          at.token * p.s.value.stride[0] + at.head * p.s.value.stride[1]};
}
// The slot of a token of the block in the cache, kMasked: not to be written.
DEVICE_FUNCTION int64_t find_target(const Params& p, const WriterTables& writer,
                                    int64_t first_token, int64_t token, int64_t head) {
  const int32_t slot = writer.wanted[token - first_token];
  if (slot < 0) return kMasked;
  if (p.pages_join) return slot * p.s.cache.stride[1] + head * p.s.cache.stride[2];
  const uint32_t page = static_cast<uint32_t>(p.s.cache.page);
  const uint32_t block = static_cast<uint32_t>(slot) / page;
  return slot_offset(p.s.cache, block, slot - int64_t{block} * page, head);
}

// Starts to copy 32 vectors to a tile, one commit.
template <class T>
DEVICE_FUNCTION void fetch_tile(const Params& p, const Strided<3>& from, int64_t source,
                                uint8_t* tile) {
  const int pieces = p.s.format.head_dim / 8;  // of 16 bytes, of a vector
  const int side = device::lane() / 16, piece = device::lane() % 16;
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; v += 2) {
    const int64_t at = device::shuffle(source, v + side) + piece * 8;
    if (piece < pieces)
      device::copy_async16(tile + (v + side) * p.tile_pitch + piece * 16,
                           static_cast<const T*>(from.data) + at, true);
  }
  device::copy_async_commit();
}

template <class T>
DEVICE_FUNCTION float half_of(const Halves8& h, int e) {
  return e % 2 ? device::high_half<T>(h.pair[e / 2]) : device::low_half<T>(h.pair[e / 2]);
}

inline constexpr float kWhole =
    8388608;  // 2^23: adding it rounds to a whole number, in the low bits

// The stage to the cache.
DEVICE_FUNCTION void write_slots(const Params& p, int64_t target, int64_t first,
                                 const uint8_t* stage) {
  device::sync_wave();
  const int64_t left = p.vectors - first;
  const int count = left < kVectors ? static_cast<int>(left) : kVectors;
  const int heads = static_cast<int>(p.s.heads);
  int v = 0;
  int head = static_cast<int>(static_cast<uint32_t>(first) % static_cast<uint32_t>(heads));
  while (v < count) {
    const int joined = p.stage.heads_join ? device::min(heads - head, count - v) : 1;
    const int64_t slot = device::shuffle(target, v);
    if (slot != kMasked)
      copy_run(p.stage, p.s.cache.data + slot, stage + v * p.stage.used, joined * p.stage.used);
    v += joined;
    head = 0;
  }
  device::sync_wave();
}

// Vectors [first, last) of a block; encoder w takes pieces w, w + encoders ...
struct Share {
  int64_t first, last;
};
DEVICE_FUNCTION Share share_of_block(const Params& p) {
  const int64_t first = int64_t{device::block_x()} * p.work;
  const int64_t last = first + p.work;
  return {first, last < p.vectors ? last : p.vectors};
}
DEVICE_FUNCTION int64_t first_of_wave(const Params& p, const Share& share) {
  return device::wave() < p.encoders ? share.first + device::wave() * kVectors : share.last;
}
DEVICE_FUNCTION int64_t collect_writers(const Params& p, WriterTables& writer,
                                        const Share& share) {
  const int64_t begin = place_of(p, share.first).token;
  collect_writers(p.s, writer, begin, place_of(p, share.last - 1).token + 1);
  return begin;
}

}  // namespace tq::encode::sm_80
