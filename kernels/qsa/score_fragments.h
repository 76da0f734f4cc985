// SPDX-License-Identifier: Apache-2.0
// How qsa.score (score_sm_80.cu) lays queries and keys out for the matrix instruction, and how they
// get there.
#pragma once

#include "device/nvidia.h"
#include "qsa/common.h"
#include "qsa/divider.h"
#include "qsa/launches.h"

namespace qsa::score_fragments {

using device::Words4;

constexpr int kHeads = 4;  // at most; missing ones are zeros
constexpr int kStep = 32;  // keys
constexpr int kTiles = kStep / 8;
static_assert(kStep == device::kWave, "a lane finds the address of one key of a step");

// Rows that are multiplied at once: 8 as two matrices of 16 (row, head), or 4 as one.
constexpr int pack_of(int rows) { return rows < 8 ? 4 : 8; }
// 16-byte pieces of a key that one lane holds: member, member + 4, ...
constexpr int pieces_of(int dims) { return dims / 32; }
// The queries of a tile of `rows`, in 16-byte words.
constexpr int query_words(int rows, int dims) { return (rows < 4 ? 4 : rows) * kHeads * dims / 8; }
// Waves of a block, two of which share a multiprocessor. Small tiles wait for memory and want many
// waves; the large one wants registers, to have the next fragments while it multiplies.
constexpr int kBlocks = 2;
constexpr int waves_of(int rows) { return rows < 64 ? 8 : 6; }

// An index times its stride where both have 32 bits (refusal() sees to that): one instruction.
DEVICE_FUNCTION int64_t times(int64_t index, int64_t stride) {
  return int64_t{int32_t(index)} * int32_t(stride);
}
template <int kRank>
DEVICE_FUNCTION int64_t id_at(const Tensor<kRank>& t, int64_t at) {
  return t.dtype == TK_I64 ? static_cast<const int64_t*>(t.data)[at]
                           : int64_t{static_cast<const int32_t*>(t.data)[at]};
}
DEVICE_FUNCTION int64_t id_of(const Tensor<1>& t, int64_t index) {
  return id_at(t, times(index, t.stride[0]));
}

// Where this lane's key of a step lies: the id of its page as the table has it, and its slot. Asked
// for one step ahead, and not looked at before that step: a look waits for memory.
struct Place {
  uint32_t id[2], slot;
};
DEVICE_FUNCTION Place place_of(const ScoreParams& p, const Divider& page_size, int64_t request,
                               int step) {
  const uint32_t column = uint32_t(step) * kStep + uint32_t(device::lane());
  const uint32_t at = page_size(column), none = ~uint32_t{0};
  Place place{{none, none}, column - at * uint32_t(p.k_cache.size[1])};
  if (request >= 0 && request < p.page_table.size[0] && at < uint32_t(p.page_table.size[1])) {
    const int64_t entry =
        times(request, p.page_table.stride[0]) + times(at, p.page_table.stride[1]);
    if (p.page_table.dtype == TK_I64) {
      const uint64_t id = static_cast<const uint64_t*>(p.page_table.data)[entry];
      place.id[0] = uint32_t(id);
      place.id[1] = uint32_t(id >> 32);
    } else {
      place.id[0] = static_cast<const uint32_t*>(p.page_table.data)[entry];
    }
  }
  return place;
}
// The key's offset, or kMasked.
DEVICE_FUNCTION int64_t offset_at(const ScoreParams& p, const Place& place) {
  const int64_t page = p.page_table.dtype == TK_I64
                           ? int64_t(uint64_t{place.id[1]} << 32 | place.id[0])
                           : int64_t{int32_t(place.id[0])};
  if (page < 0 || page >= p.k_cache.size[0]) return kMasked;
  return times(page, p.k_cache.stride[0]) + times(place.slot, p.k_cache.stride[1]);
}

// The key of a step that is column `of` of matrix `tile`: such that a lane's results (columns
// 2 member and 2 member + 1 of each) are two runs of four neighbours.
DEVICE_FUNCTION int key_of(int tile, int of) {
  return tile / 2 * 16 + of / 2 * 4 + tile % 2 * 2 + of % 2;
}

// The queries of a tile lie in shared memory in the order in which lanes read them as fragments:
// [pack][matrix][piece][half of it][lane]. Row `group` of a matrix is an even head, row group + 8
// the odd one after it; a thread brings the same piece of both. In batches, because a batch has to
// wait for memory in registers.
template <int kDims, int kRows>
struct QueryCopy {
  static constexpr int kPieces = pieces_of(kDims), kPack = pack_of(kRows);
  static constexpr int kThreads = waves_of(kRows) * device::kWave;
  static constexpr int kPairs = query_words(kRows, kDims) / 2;
  static constexpr int kRounds = (kPairs + kThreads - 1) / kThreads;
  static constexpr int kBatch = kRounds < 4 ? kRounds : 4;
  static constexpr int kBatches = (kRounds + kBatch - 1) / kBatch;
  Words4 even[kBatch], odd[kBatch];

  static DEVICE_FUNCTION int pair_of(int batch, int i) {
    return (batch * kBatch + i) * kThreads + device::thread();
  }
  DEVICE_FUNCTION void load(int batch, const ScoreParams& p, int64_t first_row, int rows) {
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int pair = pair_of(batch, i), lane = pair % device::kWave;
      const int piece = pair / device::kWave % kPieces;
      const int matrix = pair / device::kWave / kPieces % (kPack / 4);
      const int row = pair / (kPack / 4 * kPieces * device::kWave) * kPack + lane / 4 % kPack;
      const int head = kPack == 8 ? 2 * matrix : lane / 16 * 2;
      const uint16_t* from = static_cast<const uint16_t*>(p.q.data) +
                             times(first_row + row, p.q.stride[0]) + times(head, p.q.stride[1]) +
                             (lane % 4 + 4 * piece) * 8;
      even[i] = odd[i] = {};
      if (row < rows && head < p.q.size[1]) even[i] = device::load_once16(from);
      if (row < rows && head + 1 < p.q.size[1])
        odd[i] = device::load_once16(from + int32_t(p.q.stride[1]));
    }
  }
  DEVICE_FUNCTION void store(int batch, Words4* query) const {
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int pair = pair_of(batch, i);
      if (pair >= kPairs) return;
      Words4* to = query + pair / device::kWave * 2 * device::kWave + pair % device::kWave;
      to[0] = {even[i].x[0], odd[i].x[0], even[i].x[1], odd[i].x[1]};
      to[device::kWave] = {even[i].x[2], odd[i].x[2], even[i].x[3], odd[i].x[3]};
    }
  }
};

// The keys of a step in registers, as fragments. `at` is the offset of this lane's key; a key of no
// page is replaced by the first of the cache, which is always there.
template <class T, int kPieces>
DEVICE_FUNCTION void load_keys(const ScoreParams& p, int64_t at, Words4 (&key)[kTiles][kPieces]) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  const int64_t valid = at == kMasked ? 0 : at;
  DEVICE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const T* from = static_cast<const T*>(p.k_cache.data) +
                    device::shuffle(valid, key_of(n, group)) + member * 8;
    DEVICE_UNROLL
    for (int j = 0; j < kPieces; ++j) key[n][j] = device::load_once16_of_line(from + j * 32);
  }
}

}  // namespace qsa::score_fragments
