// SPDX-License-Identifier: Apache-2.0
// qsa.attend where a wave has one tile of tokens at most; a part of attend_sm_80.cu. All keys and
// values of a block are copied at once. Each wave scores its own tile, then all tiles' weights are
// multiplied with a share of the dimensions of the values: no outputs of waves have to be added up.
// A block leaves partial results, which a second launch merges.
#pragma once

#include "qsa/attend_splits.h"
#include "qsa/attend_tile.h"

namespace qsa {
namespace {

template <int kDims>
struct ShortLayout {
  static constexpr int kWaves = kShortWaves;
  static constexpr int kRow = kDims / 8;       // chunks of a token
  static constexpr int kSlot = kTile * kRow;   // chunks
  static constexpr int kTileKeys = 16 * kRow;  // behind the queries
  static constexpr int kTileValues = kTileKeys + kWaves * kSlot;
  static constexpr int kWeights = kTileValues + kWaves * kSlot;
  static constexpr int kStatistics = kWeights + kWaves * device::kWave;
  static constexpr int kPlaces = kStatistics + kWaves * kHeads / 2;
  static constexpr int kPoisoned = kPlaces + kWaves * device::kWave / 4;
  static constexpr int kChunks = kPoisoned + kHeads / 4;
};

// kFew: at most eight heads.
template <class T, int kDims, bool kFew>
DEVICE_KERNEL(kShortWaves* device::kWave)
attend_short_kernel(Plan plan) {
  using At = ShortLayout<kDims>;
  constexpr int kWaves = kShortWaves;
  constexpr int kThreads = kWaves * device::kWave;
  constexpr int kRow = At::kRow;
  constexpr int kHalves = kFew ? 1 : 2;   // of the rows: heads 0-7 and 8-15
  constexpr int kOctets = kRow / kWaves;  // dimensions / 8 of a wave
  static_assert(kOctets % 2 == 0);
  DEVICE_DYNAMIC_SHARED(Chunk, shared);
  Chunk* const queries = device::data(shared);

  const int lane = device::lane(), wave = device::wave();
  const int group = lane / 4, member = lane % 4;  // of the fragments
  device::allow_next();
  const Part at(plan);
  const int first_head = at.kv_head * plan.group;

  const uint64_t policy = device::l2_evict_first();
  const int first = at.split * plan.split_tokens;
  const int end = device::min(plan.width, first + plan.split_tokens);
  const int share = (end - first + kWaves - 1) / kWaves;
  const int own = wave * share + lane % kTile;  // lanes beyond a tile look up the values
  Id token, request, page;
  if (lane % kTile < share && first + own < end)
    token.load(plan.tokens.words + at.row * plan.tokens.row + (first + own) * plan.tokens.step,
               plan.tokens.wide);
  request.load(plan.requests + at.row * plan.request_step, plan.wide_requests);
  uint32_t* const poisoned =
      reinterpret_cast<uint32_t*>(queries + At::kPoisoned);  // heads with an output that is none
  if (device::thread() < kHeads) poisoned[device::thread()] = 0;
  Queries<kRow, kThreads, kHalves> of_heads;
  of_heads.load(plan, at.row, first_head);

  const bool valid = request.below(plan.table_rows);
  const uint32_t column = plan.by_page_size(uint32_t(token.low));  // used where the token is one
  const int place = int(uint32_t(token.low) - column * uint32_t(plan.page_size));
  if (valid && token.below(INT32_MAX) && column < uint32_t(plan.table_columns))
    page.load(plan.pages.words + request.low * plan.pages.row + column * plan.pages.step,
              plan.pages.wide);
  const Chunk* const keys = plan.keys + at.kv_head * plan.key_head + lane % kRow;
  const Chunk* const values = plan.values + at.kv_head * plan.value_head + lane % kRow;
  Chunk* const places = queries + At::kPlaces + wave * device::kWave / 4;
  const bool ok = page.below(plan.cache_pages);
  const bool of_key = lane < kTile;
  places[0].x[lane] = ok ? page.low * (of_key ? plan.key_page : plan.value_page) +
                               place * (of_key ? plan.key_token : plan.value_token)
                         : 0;
  const uint32_t live = uint32_t(device::ballot(ok)) & ((1u << kTile) - 1);
  device::sync_wave();
  Chunk* const key = queries + At::kTileKeys + wave * At::kSlot;
  copy_tile<kRow>(key, keys, places, live, policy);
  device::copy_async_commit();
  copy_tile<kRow>(queries + At::kTileValues + wave * At::kSlot, values, places + kTile / 4, live,
                  policy);
  device::copy_async_commit();
  of_heads.store(queries);
  device::sync_block();

  device::copy_async_wait<1>();
  device::sync_wave();
  float dot[2][2][4] = {};
  multiply_keys<T, kRow>(dot, queries, key);
  Scores<kHalves> scores(dot, live, plan.scale);
  Statistics* const of_waves = reinterpret_cast<Statistics*>(queries + At::kStatistics);
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    scores.share_most(half);
    if (member == 0) of_waves[wave * kHeads + half * 8 + group].top = scores.most[half];
  }
  device::sync_block();
  float top[kHalves], total[kHalves];
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    top[half] = -device::infinity();
    total[half] = 0.0f;
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w)
      top[half] = device::max(top[half], of_waves[w * kHeads + half * 8 + group].top);
  }
  uint32_t weights[4];
  scores.template weigh<T>(weights, top, total);
  Chunk* const of_tiles = queries + At::kWeights;
  of_tiles[wave * device::kWave + lane] = {weights[0], weights[1], weights[2], weights[3]};
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    total[half] += device::shuffle_xor(total[half], 1);
    total[half] += device::shuffle_xor(total[half], 2);
    if (member == 0) of_waves[wave * kHeads + half * 8 + group].total = total[half];
  }
  device::copy_async_wait<0>();
  device::sync_block();

  // A wave's share of the dimensions, of all tiles.
  const int first_octet = wave * kOctets;
  float output[kOctets][4] = {};
  {
    const int matrix = lane / 8, line = lane % 8;
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w) {
      const Chunk of_tile = of_tiles[w * device::kWave + lane];
      const Chunk* const value =
          queries + At::kTileValues + w * At::kSlot + (matrix % 2 * 8 + line) * kRow;
      DEVICE_UNROLL
      for (int n = 0; n < kOctets; n += 2) {
        uint32_t v[4];
        device::load_matrices_transposed(v,
                                         value + ((first_octet + n + matrix / 2) ^ swizzle(line)));
        device::multiply_16x8x16<T>(output[n], of_tile.x, {v[0], v[1]});
        device::multiply_16x8x16<T>(output[n + 1], of_tile.x, {v[2], v[3]});
      }
    }
  }
  const int64_t at_split = (int64_t(at.unit) * plan.splits + at.split) * plan.group;
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    const int head = half * 8 + group;
    float not_finite = 0.0f;
    DEVICE_UNROLL
    for (int n = 0; n < kOctets; ++n) {
      const float a = output[n][2 * half], b = output[n][2 * half + 1];
      not_finite = device::fma(a, 0.0f, device::fma(b, 0.0f, not_finite));
    }
    if (head >= plan.group) continue;
    DEVICE_UNROLL
    for (int n = 0; n < kOctets; ++n) {
      const Pack<float, 8> both{output[n][2 * half], output[n][2 * half + 1]};
      float* const to =
          plan.partial + (at_split + head) * kDims + (first_octet + n) * 8 + member * 2;
      *reinterpret_cast<Pack<float, 8>*>(to) = both;
    }
    if (not_finite != 0.0f) device::atomic_or(poisoned + head, 1u);
  }
  device::sync_block();
  const int head = device::thread();
  if (head >= plan.group) return;
  Statistics all{-device::infinity(), 0.0f};
  DEVICE_UNROLL
  for (int w = 0; w < kWaves; ++w) {
    all.top = device::max(all.top, of_waves[w * kHeads + head].top);
    all.total += of_waves[w * kHeads + head].total;
  }
  if (poisoned[head]) all.total = device::nan();
  plan.statistics[at_split + head] = all;
}

}  // namespace
}  // namespace qsa
