// SPDX-License-Identifier: Apache-2.0
// From listed tokens to tiles of keys and values in shared memory; a part of attend_sm_80.cu.
#pragma once

#include "qsa/attend_plan.h"

namespace qsa {
namespace {

// Chunk c of token t (or head) stands at c ^ swizzle(t): eight tokens' chunks c lie in eight bank
// groups (values, read down the tokens), and so do four chunks of two neighbours (keys, queries).
DEVICE_FUNCTION int swizzle(int token) { return (token & 1) << 2 | (token >> 1 & 3); }

// An id; -1 where it is beyond 32 bits, which none that is in use can be. Not looked at here, so
// that the load does not have to be waited for.
template <int kRank, class... Index>
DEVICE_FUNCTION int32_t load_id(const Tensor<kRank>& t, Index... index) {
  const int64_t at = offset_of(t, index...);
  if (t.dtype != TK_I64) return static_cast<const int32_t*>(t.data)[at];
  const int64_t id = static_cast<const int64_t*>(t.data)[at];
  return id == int32_t(id) ? int32_t(id) : -1;
}

// The tokens of one wave, two tiles at once: lane kTile * i + j has token j of tile i. Index, page
// and keys depend on each other, so each is loaded two tiles before the next.
struct Lookup {
  int32_t token;          // four tiles ahead
  int32_t page, place;    // two tiles ahead; the page as the table has it
  device::LaneMask live;  // of these two tiles

  int64_t column, end;
  int row, request;

  DEVICE_FUNCTION void next_token(const AttendParams& p) {
    token = column < end ? load_id(p.tokens, row, column) : -1;
    column += device::kWave;
  }
  DEVICE_FUNCTION void next_page(const AttendParams& p) {
    const uint32_t size = uint32_t(p.k_cache.size[1]), at = uint32_t(token) / size;
    place = int32_t(uint32_t(token) - at * size);
    page = token >= 0 && at < p.block_table.size[1] ? load_id(p.block_table, request, at) : -1;
  }
  // To `places`: the chunks from the cache's first to these two tiles' keys and to their values.
  DEVICE_FUNCTION void next_tiles(const AttendParams& p, const Plan& plan, uint32_t* places) {
    const bool ok = page >= 0 && page < p.k_cache.size[0];
    device::sync_wave();  // all lanes have read the places before
    places[device::lane()] = ok ? page * plan.key_page + place * plan.key_token : 0;
    places[device::kWave + device::lane()] =
        ok ? page * plan.value_page + place * plan.value_token : 0;
    live = device::ballot(ok);
    device::sync_wave();
    next_page(p);
    next_token(p);
  }
};

// A tile of rows. `from` is this lane's chunk of the cache's first token, `places` and `live` have
// the tile's tokens. All addresses come first: copies that wait for theirs wait for each other.
template <int kRow>
DEVICE_FUNCTION void copy_tile(Chunk* to, const Chunk* from, const Chunk* places, uint32_t live,
                               uint64_t policy) {
  constexpr int kCopies = kTile * kRow / device::kWave;
  const int chunk = device::lane() % kRow, first = device::lane() / kRow * kCopies;
  uint32_t place[kCopies];
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; i += 4) {
    const Chunk four = places[(first + i) / 4];
    DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) place[i + e] = four.x[e];
  }
  const Chunk* source[kCopies];
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; ++i) source[i] = from + place[i];
  const uint32_t own = live >> first;
  Chunk* const row = to + first * kRow;
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; ++i)
    device::copy_async16(row + i * kRow + (chunk ^ swizzle(i)), source[i], own >> i & 1, policy);
}

}  // namespace
}  // namespace qsa
