// SPDX-License-Identifier: Apache-2.0
// tq.decode where there is little work (decode_few.h): what the kernel is told, and how its shared
// memory lies. A unit is a KV head's tile of up to 8 query heads; `parts` blocks share a unit's
// tokens of all sequences.
#pragma once

#include "tq/decode_tile.h"
#include "tq/rotation.h"

namespace tq {

inline constexpr int kFewWaves = 16;          // of a block, at most
inline constexpr int kFewTurnTiles = 2;       // that a wave takes at once
inline constexpr int kFewRing = 2;            // turns of a wave in shared memory
inline constexpr int kFewStage = 4;           // tiles by which sequences are cut
inline constexpr int kFewEntries = 32;        // tiles of a wave whose places are known
inline constexpr int kFewHeads = 8;           // of a unit, at most
inline constexpr int kFewUnits = 64;          // of all sequences, at most
inline constexpr int kFewStaticBytes = 2048;  // beside the layout, what a block costs included

// A token's slot in shared memory: the 16-byte units of the cache that cover it. As a number of
// units that is odd, tokens 0 ... 7 lie in banks of their own.
inline constexpr int few_slot_bytes(int key_bits, int value_bits, int dim) {
  return key_bits * dim / 8 + (key_bits == 8 ? 0 : 2) + value_bits * dim / 8 + 4;
}
inline constexpr int few_units(int key_bits, int value_bits, int dim) {
  const int most_offset = key_bits == 8 ? 12 : 14;
  return (most_offset + few_slot_bytes(key_bits, value_bits, dim) + 15) / 16;
}

// The largest score (or more) in base 2, and the sum of the weights relative to it.
struct Statistics {
  float top, total;
};

// What is needed first comes first: parts of it that a multiprocessor has not had yet take time.
struct FewParams {
  Schedule schedule;
  const void* table;  // page ids
  tk_dtype table_dtype;
  int table_row, table_column;
  int capacity_tiles;
  int units, group, tile_heads;  // tile_heads: query heads of a unit
  int token_stride;              // of the cache
  int64_t head_stride;
  Codebook centroids;
  uint64_t* arrivals;     // [B][units]: tag + blocks that are done
  const uint16_t* query;  // elements of a head are end to end
  const float* pi;
  int query_row, query_head, pi_row;
  tk_dtype dtype;  // of query and output
  bool rotate;
  float scale;  // of scores in base 2
  const uint8_t* cache;
  int64_t blocks, block_stride, tile_stride;  // of the cache; tiles of a page
  uint64_t tag;                               // of this call; its low bits are zeros
  float* partial;          // [parts + B][units][kFewHeads][dim], relative to the largest score
  Statistics* statistics;  // [parts + B][units][kFewHeads]
  Strided<3> output;
  Strided<2> lse;
  StreamParams stream;  // what TileMath asks for: tile as in shared memory, format, constants

  DEVICE_FUNCTION int64_t kv_head_offset(int kv_head) const { return kv_head * head_stride; }
};

// What a block is; worked out again rather than kept in registers.
struct FewUnit {
  int part, unit;
  int kv_head;
  int first_head, heads;  // query heads
  DEVICE_FUNCTION explicit FewUnit(const FewParams& p) {
    kv_head = device::block_x();
    const int first = device::block_y() * p.tile_heads;
    unit = kv_head * device::blocks_y() + device::block_y();
    part = device::block_z();
    first_head = kv_head * p.group + first;
    heads = device::min(p.tile_heads, p.group - first);
  }
};

// Tiles of a sequence that a block takes: first, first + step ... below end. Each wave has a copy.
struct FewSegment {
  int row, tokens;
  int first, step, end;
  const uint8_t* cache;   // where the KV head's units begin in a page
  int first_part, count;  // the parts that share the sequence
};

// What is known of a wave's tile.
struct FewEntry {
  int64_t offset;  // in the cache
  int live, unused;
};

// Shared memory of a block, in bytes from an address that the pair table is aligned to.
template <int kKeyBits, int kValueBits, int kDim, int kColumns>
struct FewLayout {
  static constexpr int kSlotBytes = few_slot_bytes(kKeyBits, kValueBits, kDim);
  static constexpr int kUnits = few_units(kKeyBits, kValueBits, kDim);
  static constexpr int kPitch = (kUnits | 1) * 16, kTileBytes = kTileTokens * kPitch;
  // Units that lanes copy: lane + 32 i keeps its distance in shared memory.
  static constexpr bool kEven = device::kWave % kUnits == 0;
  static constexpr int kCopied = kEven ? kUnits : kUnits | 1;
  static constexpr int kStep = kEven ? device::kWave / kUnits * kPitch : device::kWave * 16;
  static constexpr int kCopies = (kTileTokens * kCopied + device::kWave - 1) / device::kWave;

  static constexpr int kQueries = pair_table_bytes(kKeyBits);
  static constexpr int kSources = kQueries + kDim * (kColumns == 4 ? 16 : 32);
  static constexpr int kEntriesAt = kSources + kCopies * device::kWave * 4;
  static constexpr int kEntriesBytes = kFewEntries * int(sizeof(FewEntry));  // of a wave
  static constexpr int kSegmentBytes = 48;  // of a wave, behind the entries of all
  static_assert(sizeof(FewSegment) <= kSegmentBytes);
  static constexpr int kRingBytes = kFewRing * kFewTurnTiles * kTileBytes;  // of a wave

  // Copies of 16 bytes fetch every 32 of the cache twice if they come to lie differently within
  // 32 in shared memory: rings begin at a line or kShift behind it, as the KV head's units do.
  static constexpr int kLine = 128, kShift = 16;
  static_assert(kRingBytes % kLine == 0);

  static constexpr int kOutPitch = kDim + 8;  // floats of a head, when waves' results meet
  static_assert(kShift + kOutPitch * kColumns * 4 <= kRingBytes);

  static constexpr int rings(int waves) {
    return (kEntriesAt + waves * (kEntriesBytes + kSegmentBytes) + kLine - 1) / kLine * kLine;
  }
  static constexpr int bytes(int waves) {
    const int alignment = pair_table_alignment(kKeyBits) - 16;
    return rings(waves) + waves * kRingBytes + kShift + alignment;
  }
};

}  // namespace tq
