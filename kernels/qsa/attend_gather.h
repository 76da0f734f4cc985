// SPDX-License-Identifier: Apache-2.0
// From listed tokens to tiles of keys and values in shared memory; a part of attend_sm_80.cu.
#pragma once

#include "qsa/attend_plan.h"

namespace qsa {
namespace {

// Chunk c of token t (or head) stands at c ^ swizzle(t): eight tokens' chunks c lie in eight bank
// groups (values, read down the tokens), and so do four chunks of two neighbours (keys, queries).
DEVICE_FUNCTION int swizzle(int token) { return (token & 1) << 2 | (token >> 1 & 3); }

// An id as it was loaded. Nothing looks at it before ok(): a load that is looked at has to be
// waited for.
struct Id {
  int32_t low = -1, high = 0;
  DEVICE_FUNCTION void load(const int32_t* words, bool wide) {
    low = words[0];
    if (wide) high = words[1];
  }
  DEVICE_FUNCTION bool below(int32_t limit) const { return low >= 0 && low < limit && high == 0; }
};

// The tokens of one wave, two tiles at once: lane kTile * i + j has token j of tile i. Index, page
// and keys depend on each other, so each is loaded two tiles before the next.
struct Lookup {
  Id token;               // four tiles ahead
  Id page;                // two tiles ahead
  int place;              // in that page
  device::LaneMask live;  // of these two tiles

  const int32_t *tokens, *pages;  // of the row and its request
  int column, end;

  DEVICE_FUNCTION void next_token(const Plan& plan) {
    token = Id{};
    if (column < end) token.load(tokens + column * plan.tokens.step, plan.tokens.wide);
    column += device::kWave;
  }
  DEVICE_FUNCTION void next_page(const Plan& plan) {
    const uint32_t at = plan.by_page_size(uint32_t(token.low));  // used where the token is one
    place = int(uint32_t(token.low) - at * uint32_t(plan.page_size));
    page = Id{};
    if (token.below(INT32_MAX) && at < uint32_t(plan.table_columns))
      page.load(pages + at * plan.pages.step, plan.pages.wide);
  }
  // To `places`: the chunks from the cache's first to these two tiles' keys and to their values.
  DEVICE_FUNCTION void next_tiles(const Plan& plan, uint32_t* places) {
    const bool ok = page.below(plan.cache_pages);
    device::sync_wave();  // all lanes have read the places before
    places[device::lane()] = ok ? page.low * plan.key_page + place * plan.key_token : 0;
    places[device::kWave + device::lane()] =
        ok ? page.low * plan.value_page + place * plan.value_token : 0;
    live = device::ballot(ok);
    device::sync_wave();
    next_page(plan);
    next_token(plan);
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
    device::copy_async16(row + i * kRow + (chunk ^ swizzle(i)), source[i], (own & 1u << i) != 0,
                         policy);
}

}  // namespace
}  // namespace qsa
