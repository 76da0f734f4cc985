// SPDX-License-Identifier: Apache-2.0
// qsa.attend for many rows on NVIDIA GPUs of sm_90: as attend_union_sm_80.cu (which calls this
// where it serves), with larger groups and products of whole warpgroups.
//
//   1. list:   a block a group: attend_union_tiles.h.
//   2. attend: a block a (group, KV head). A group is 128 queries of a KV head, row by row,
//   whichever
//              rows they are of (heads of 12 would fill 120 of them otherwise). S = Q K^T and O = P
//              V with the queries as rows: P goes from one product to the next in registers. Two
//              warpgroups of 64 queries share the tiles of tokens, and take turns: one multiplies
//              while the other one makes weights of its scores.
//   3. rows:   what is left, by the kernel of single rows. A row that is of two groups is left if
//              either leaves it.
#include <algorithm>
#include <cmath>

#include "device/warpgroup.h"
#include "qsa/attend_union.h"
#include "qsa/attend_union_tiles.h"

namespace qsa {
namespace {

constexpr int kDims = 256;
constexpr int kThreads = 256;  // two warpgroups
constexpr int kHalfThreads = kThreads / 2;
constexpr int kHalfColumns = kColumns / 2;  // of a warpgroup
constexpr int kChunks = kDims / 8;          // of 16 bytes: a token's key or value
constexpr int kTileBytes = kTile * kDims * 2;
constexpr int kAligned = 1024;
constexpr float kMostOfTile =
    256.0f;  // a lane's sum of weights of a tile, before they are taken against more
constexpr int64_t kRowsOfRequest = 8;  // at least, on the average
// One block a multiprocessor, and a third of them in use is still faster than the row kernel.
constexpr int64_t kFewestShare = 3;
constexpr int kOwnTokens = kTile / (kThreads / device::kWave);  // of a wave's copies

// Several blocks may take back neighbours.
DEVICE_FUNCTION void take_back(uint8_t* served, int64_t unit) {
  uint32_t* const word = reinterpret_cast<uint32_t*>(served) + unit / 4;
  const uint32_t others = ~(uint32_t{255} << unit % 4 * 8);
  uint32_t before = device::atomic_or(word, 0u), seen = ~before;
  while (seen != before) {
    seen = before;
    before = device::atomic_cas(word, seen, seen & others);
  }
}

template <class T>
DEVICE_KERNEL_BLOCKS(kThreads, 1)
attend_union_kernel(AttendParams p, Union u) {
  DEVICE_DYNAMIC_SHARED(Pack<T>, shared);
  DEVICE_SHARED(uint32_t, poisoned, kMaxRows);
  const int thread = device::thread(), lane = device::lane(), wave = device::wave();
  const int quad = lane / 4, member = lane % 4;
  const int warpgroup = device::shuffle(wave / 4, 0);  // uniform, also for the compiler
  const int64_t group = device::block_x() % u.groups;
  const int kv_head = int(device::block_x() / u.groups);
  const Rows own = rows_of(p, u, group);
  const int64_t first_row = own.first;
  const int count = device::shuffle(u.counts[group], 0);
  if (count == kRowByRow) {
    if (thread < own.count) take_back(u.served, (first_row + thread) * u.kv_heads + kv_head);
    return;
  }
  char* const base = reinterpret_cast<char*>(
      (reinterpret_cast<uintptr_t>(device::data(shared)) + kAligned - 1) / kAligned * kAligned);
  char* const queries = base + warpgroup * kTileBytes;
  char* const keys = base + 2 * kTileBytes;
  char* const values = base + 4 * kTileBytes;
  // This warpgroup's columns go on from the first row's head `first_head`.
  const int64_t first_column = group * kColumns + warpgroup * kHalfColumns;
  const int first_head = int(first_column - first_row * u.group);
  const int columns = int(larger(0, smaller(kHalfColumns, p.q.size[0] * u.group - first_column)));

  // 32 bits, because registers are scarce.
  const uint32_t own_place =
      uint32_t(group * u.room) + uint32_t(wave * kOwnTokens + lane % kOwnTokens);
  const T* cached_keys = element<const T>(p.k_cache, 0, 0, kv_head, lane * 8);
  const T* cached_values = element<const T>(p.v_cache, 0, 0, kv_head, lane * 8);
  const int tiles = (count + kTile - 1) / kTile;

  for (int i = thread % kHalfThreads; i < kHalfColumns * kChunks; i += kHalfThreads) {
    const int column = i / kChunks, chunk = i % kChunks;
    const bool real = column < columns;
    const int at = real ? first_head + column : 0;
    device::copy_async16(queries + device::tile_at(column, chunk),
                         element<const T>(p.q, first_row + at / u.group,
                                          kv_head * u.group + at % u.group, chunk * 8),
                         real);
  }
  if (thread < kMaxRows) poisoned[thread] = 0;

  // A wave copies a token's key or value at once, of kOwnTokens tokens. They are eight, so that the
  // permutation of a row's chunks is by their number.
  static_assert(kOwnTokens == 8);
  const int copy_at = device::tile_at(wave * kOwnTokens, lane);
  const auto copy = [&](char* to, const T* from, uint32_t place) {
    DEVICE_UNROLL
    for (int i = 0; i < kOwnTokens; ++i)
      device::copy_async16(to + (copy_at ^ (i * 16)) + i * 128,
                           from + uint64_t{device::shuffle(place, i)} * 8, true);
  };
  const auto place_of = [&](int tile) { return u.places[own_place + uint32_t(tile * kTile)]; };

  const int column = wave % 4 * 16 + quad;  // and the one 8 below
  uint32_t own_mask[2];                     // of the first tile
  DEVICE_UNROLL
  for (int h = 0; h < 2; ++h)
    own_mask[h] = uint32_t(group * (u.room / kTile)) * uint32_t(u.rows) +
                  uint32_t((first_head + column + 8 * h) / u.group);
  struct TwoMasks {
    Mask of[2];
  };
  const auto masks_of = [&](int tile) {
    TwoMasks m;
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) m.of[h] = u.masks[own_mask[h] + uint32_t(tile * u.rows)];
    return m;
  };

  float top[2], sum[2], tile_sum[2];
  DEVICE_UNROLL
  for (int h = 0; h < 2; ++h) {
    top[h] = -device::infinity();
    sum[h] = 0.0f;
  }
  float score[32], out[128];
  DEVICE_UNROLL
  for (int i = 0; i < 128; ++i) out[i] = 0.0f;

  const device::SharedAddress query_tile = device::shared_address(queries);
  const device::SharedAddress key_tile = device::shared_address(keys);
  const device::SharedAddress value_tile = device::shared_address(values);
  const auto issue_scores = [&](int stage) {
    const device::SharedAddress at = key_tile + stage * kTileBytes;
    device::multiply_64x64x16<T, false>(score, query_tile, at, 0);
    DEVICE_UNROLL
    for (int k = 1; k < kDims / 16; ++k)
      device::multiply_64x64x16<T, true>(score, query_tile, at, k);
  };
  // visit(h, at, live): the scores of this lane, those of a column in the order of the tokens.
  const auto each_score = [&](const TwoMasks& listing, auto visit) {
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t bits = listing.of[h].half[half] >> (2 * member);
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) DEVICE_UNROLL
      for (int e = 0; e < 2; ++e)
        visit(h, (half * 4 + j) * 4 + h * 2 + e, (bits >> (8 * j + e) & 1) != 0);
    }
  };
  // Weights of the scores, 0 where a row does not list the token. True where a column's are far
  // above what they are taken against, or against nothing.
  const auto weigh = [&](const TwoMasks& listing, uint32_t(&to)[16]) {
    float against[2], first = 0.0f;
    bool grown = false;
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const bool none = top[h] == -device::infinity();
      against[h] = none ? 0.0f : -top[h];
      grown = grown || (none && (listing.of[h].half[0] | listing.of[h].half[1]) != 0);
      tile_sum[h] = 0.0f;
    }
    each_score(listing, [&](int h, int at, bool live) {
      if (live)
        tile_sum[h] = device::fma(score[at], 0.0f, tile_sum[h]);  // NaN, if it is not finite
      const float w = live ? device::exp2_fast(device::fma(score[at], u.scale, against[h])) : 0.0f;
      tile_sum[h] += w;
      if (at % 2 == 0)
        first = w;
      else
        to[at / 2] = device::pack_halves<T>(first, w);
    });
    return grown || tile_sum[0] > kMostOfTile || tile_sum[1] > kMostOfTile;
  };
  // By a wave, and seldom: what its columns are taken against becomes their largest score, and all
  // sums follow.
  const auto raise_tops = [&](const TwoMasks& listing) {
    float most[2];
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) most[h] = top[h];
    each_score(listing, [&](int h, int at, bool live) {
      if (live) most[h] = device::max(most[h], score[at] * u.scale);
    });
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      most[h] = device::max(most[h], device::shuffle_xor(most[h], 1));
      most[h] = device::max(most[h], device::shuffle_xor(most[h], 2));
      const float factor = most[h] == top[h] ? 1.0f : device::exp2_fast(top[h] - most[h]);
      top[h] = most[h];
      sum[h] *= factor;
      DEVICE_UNROLL
      for (int j = 0; j < 32; ++j) DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) out[j * 4 + h * 2 + e] *= factor;
    }
  };
  uint32_t weight[16];  // registers of a product: four for 16 tokens

  Place value_place = place_of(0), key_place = place_of(1);
  TwoMasks listing = masks_of(0);
  if (tiles > 0) copy(keys, cached_keys, value_place.key);
  device::copy_async_commit();
  if (tiles > 0) copy(values, cached_values, value_place.value);
  if (tiles > 1) copy(keys + kTileBytes, cached_keys, key_place.key);
  device::copy_async_commit();
  value_place = key_place;
  key_place = place_of(2);
  // Of the next tile's values and of the keys of the one after it.
  const auto copy_next = [&](int tile) {
    const int stage = tile % 2;
    if (tile + 1 < tiles) copy(values + (stage ^ 1) * kTileBytes, cached_values, value_place.value);
    if (tile + 2 < tiles) copy(keys + stage * kTileBytes, cached_keys, key_place.key);
    device::copy_async_commit();
    value_place = key_place;
    key_place = place_of(tile + 3);
  };
  const auto soften = [&](int tile) {
    if (device::any(weigh(listing, weight))) {
      raise_tops(listing);
      weigh(listing, weight);
    }
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) sum[h] += tile_sum[h];
    listing = masks_of(tile + 1);
  };
  // The scores of the next tile (behind the last one: of anything), the outputs of this one.
  const auto multiply = [&](int tile) {
    const int stage = tile % 2;
    device::products_begin();
    issue_scores(stage ^ 1);
    DEVICE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      device::multiply_64x256x16<T>(out, weight, value_tile + stage * kTileBytes, k);
    device::products_commit();
  };
  const auto finish = [&] {
    device::products_wait<0>(score);
    device::products_wait<0>(out);
  };

  device::copy_async_wait<1>();
  device::fence_async_copies();
  device::sync_block();
  if (tiles > 0) {
    device::products_begin();
    issue_scores(0);
    device::products_commit();
    device::products_wait<0>(score);
    soften(0);
  }
  // One warpgroup multiplies while the other one makes weights of its scores.
  for (int tile = 0; tile < tiles; ++tile) {
    device::copy_async_wait<0>();
    device::fence_async_copies();
    device::sync_block();  // keys of tile + 1 and values of this tile are there; the others are
                           // read
    if (warpgroup == 0) {
      multiply(tile);
      copy_next(tile);
      finish();
    } else {
      copy_next(tile);
      if (tile > 0) soften(tile);
    }
    device::sync_block();
    if (warpgroup == 0) {
      if (tile + 1 < tiles) soften(tile + 1);
    } else {
      multiply(tile);
      finish();
    }
  }
  device::copy_async_wait<0>();
  device::sync_block();

  // Outputs replace the queries: a wave has rows of its own there.
  bool finite[2];
  DEVICE_UNROLL
  for (int h = 0; h < 2; ++h) {
    sum[h] += device::shuffle_xor(sum[h], 1);
    sum[h] += device::shuffle_xor(sum[h], 2);
    finite[h] = sum[h] < device::infinity();
    const float factor = sum[h] == 0.0f ? 0.0f : device::divide(1.0f, sum[h]);
    DEVICE_UNROLL
    for (int j = 0; j < 32; ++j) {
      const float a = out[j * 4 + h * 2] * factor, b = out[j * 4 + h * 2 + 1] * factor;
      finite[h] =
          finite[h] && device::abs(a) < device::infinity() && device::abs(b) < device::infinity();
      *reinterpret_cast<uint32_t*>(queries + device::tile_at(column + 8 * h, j) + member * 4) =
          device::pack_halves<T>(a, b);
    }
    if (!finite[h] && column + 8 * h < columns)
      device::atomic_or(&poisoned[(first_head + column + 8 * h) / u.group], 1u);
  }
  device::sync_block();
  for (int i = 0; i < 16; ++i) {
    const int from = wave % 4 * 16 + i, row = (first_head + from) / u.group;
    if (from >= columns || poisoned[row]) continue;
    T* to = element<T>(p.output, first_row + row, kv_head * u.group + (first_head + from) % u.group,
                       lane * 8);
    const Pack<T> chunk = *reinterpret_cast<const Pack<T>*>(queries + device::tile_at(from, lane));
    if (u.packed_output)
      *reinterpret_cast<Pack<T>*>(to) = chunk;
    else
      for (int e = 0; e < 8; ++e) to[e * p.output.stride[2]] = chunk.x[e];
  }
  DEVICE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int at = first_head + column + 8 * h, row = at / u.group;
    if (!p.lse.data || member != 0 || column + 8 * h >= columns || poisoned[row]) continue;
    *element<float>(p.lse, first_row + row, kv_head * u.group + at % u.group) =
        sum[h] == 0.0f ? -device::infinity() : top[h] + device::log2(sum[h]);
  }
  if (thread < own.count && poisoned[thread])
    take_back(u.served, (first_row + thread) * u.kv_heads + kv_head);
}

constexpr size_t kSharedBytes = size_t(6) * kTileBytes + kAligned;

// That kColumns queries touch, wherever they begin.
int64_t most_rows(int64_t group) { return (kColumns + group - 2) / group + 1; }

// Places are chunks in 32 bits.
bool has_places(const Tensor<4>& cache) {
  int64_t reach = 0;
  for (int d = 0; d < 2; ++d) {
    if (cache.size[d] > 1 && cache.stride[d] < 0) return false;
    if (cache.size[d] > 1) reach += (cache.size[d] - 1) * (cache.stride[d] / 8);
  }
  return reach <= UINT32_MAX;
}
uint32_t chunks_of(const Tensor<4>& cache, int dim) {
  return cache.size[dim] > 1 ? uint32_t(cache.stride[dim] / 8) : 0;
}

int64_t room_of(const AttendParams& p, int64_t rows) {
  const int64_t most =
      std::min<int64_t>(rows * p.tokens.size[1], p.block_table.size[1] * p.k_cache.size[1]);
  return ((most + kTile - 1) / kTile + kTilesBehind) * kTile;
}
// As many as fit beside the masks of the list; none at all, or fewer: 0 and less.
int window_words(const AttendParams& p, int64_t rows, int64_t room) {
  const int64_t all = (p.block_table.size[1] * p.k_cache.size[1] + kBits - 1) / kBits;
  return int(std::min(all, (kListShared - rows * (room / kBits)) / (rows + 2)));
}

Union make_union(const AttendParams& p, device::Carver& carver) {
  Union u{};
  const int64_t rows = p.q.size[0], kv_heads = p.k_cache.size[2];
  u.group = int(p.q.size[1] / kv_heads);
  u.rows = int(most_rows(u.group));
  u.kv_heads = int(kv_heads);
  u.groups = (rows * u.group + kColumns - 1) / kColumns;
  blocks(u.groups * kv_heads);
  u.key_page = chunks_of(p.k_cache, 0);
  u.key_token = chunks_of(p.k_cache, 1);
  u.value_page = chunks_of(p.v_cache, 0);
  u.value_token = chunks_of(p.v_cache, 1);
  u.room = room_of(p, u.rows);
  u.window_words = window_words(p, u.rows, u.room);
  u.places = carver.take<Place>(uint64_t(u.groups * u.room));
  u.masks = carver.take<Mask>(uint64_t(u.groups * (u.room / kTile) * u.rows));
  u.counts = carver.take<int32_t>(uint64_t(u.groups));
  u.served = carver.take<uint8_t>(uint64_t(rows * kv_heads));
  u.scale = float(1.4426950408889634 / std::sqrt(double(kDims)));
  return u;
}

size_t list_bytes(const Union& u) {
  return (size_t(u.rows + 2) * size_t(u.window_words) + size_t(u.rows * (u.room / kBits))) * 4;
}

template <class T>
void launch_kernels(const AttendParams& p, const Union& u, void* stream) {
  if (p.tokens.dtype == TK_I64)
    device::launch(list_kernel<int64_t>, device::Grid{u.groups}, kListThreads, list_bytes(u),
                   stream, p, u);
  else
    device::launch(list_kernel<int32_t>, device::Grid{u.groups}, kListThreads, list_bytes(u),
                   stream, p, u);
  device::launch(attend_union_kernel<T>, blocks(u.groups * u.kv_heads), kThreads, kSharedBytes,
                 stream, p, u);
}

}  // namespace

bool shares_tiles(const AttendParams& p) {
  const int64_t rows = p.q.size[0], kv_heads = p.k_cache.size[2];
  const int64_t group = p.q.size[1] / kv_heads;
  if (!device::has_warpgroups() || p.q.size[2] != kDims || most_rows(group) > kMaxRows)
    return false;
  if (!has_places(p.k_cache) || !has_places(p.v_cache)) return false;
  const int64_t groups = rows * group / kColumns, touched = most_rows(group);
  const int64_t room = room_of(p, touched);
  if (window_words(p, touched, room) <= 0) return false;
  if ((groups + 1) * touched > UINT32_MAX / room) return false;  // numbers of masks and places
  // Neighbours of one request are wanted, and enough of them.
  return rows > kRowsOfRequest * p.block_table.size[0] &&
         groups * kv_heads * kFewestShare >= device::multiprocessors();
}

const uint8_t* plan_tiles(const AttendParams& p, device::Carver& carver) {
  return make_union(p, carver).served;
}

const uint8_t* launch_tiles(const AttendParams& p, device::Carver& carver, void* stream) {
  Union u = make_union(p, carver);
  u.packed_output = dense_runs(p.output, 16);
  if (p.q.dtype == TK_BF16)
    launch_kernels<bf16>(p, u, stream);
  else
    launch_kernels<f16>(p, u, stream);
  return u.served;
}

}  // namespace qsa
