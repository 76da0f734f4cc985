// SPDX-License-Identifier: Apache-2.0
// qsa.attend for many rows, as in a prefill, on NVIDIA GPUs from sm_80 on. Neighbouring rows of a
// request list nearly the same tokens, and every row that reads its own copy of them is bound by
// the L2. So rows are taken in groups, and a token that several rows of a group list is read once
// for all of them.
//
//   1. list:   a block a group: which tokens its rows list together, and which row lists which.
//              Where that saves too little the group is left to the kernel of single rows, also where
//              its rows are of different requests or list a token twice.
//   2. attend: a block a (group, KV head): the heads of all rows are the columns of one matrix
//              product, S^T = K Q^T, O^T = V^T P^T; a column's weight of a token it does not list is 0.
//   3. rows:   what is left, row by row. Also each (row, KV head) whose output is not finite: a value
//              that is not finite times the weight 0 of a row which does not list it is NaN.
#include <algorithm>
#include <cmath>

#include "device/nvidia.h"
#include "qsa/attend_union.h"
#include "qsa/attend_union_list.h"

namespace qsa {
namespace {

constexpr int kDims = 256;
constexpr int kColumns = 48;  // rows of a group times query heads of a KV head, at most
constexpr int kTile = 32;     // tokens
constexpr int kThreads = 128;
constexpr int kWarps = 4;
constexpr int kChunks = kDims / 8;           // of 16 bytes: a token's key or value
constexpr int kStageChunks = kTile * kChunks;
constexpr int kTokenBytes = 16 * kChunks, kStageBytes = 16 * kStageChunks;
constexpr int kWeightPitch = kTile + 8;      // halves; 80 bytes: eight columns meet all banks
constexpr int kColumnTiles = kColumns / 8;
constexpr int kDimTiles = kDims / kWarps / 16;  // of a warp's dimensions
constexpr int kSteps = kChunks / 4;  // of 32 dimensions
static_assert(kSteps == kTile / 16 * kDimTiles, "both products have as many steps");
constexpr int kHalfTiles = kColumnTiles / 2;    // column tiles of a warp's scores
constexpr float kSlack = 8.0f;         // log2 of the largest weight
constexpr int64_t kRowsOfRequest = 8;  // at least, on the average

// Chunk c of row r in a tile of rows of kChunks: neighbouring rows of the same chunk meet other banks.
DEVICE_FUNCTION int swizzled(int row, int chunk) { return row * kChunks + (chunk ^ (row & 7)); }

template <class T>
DEVICE_KERNEL_BLOCKS(kThreads, 2)
attend_union_kernel(AttendParams p, Union u) {
  DEVICE_DYNAMIC_SHARED(Pack<T>, shared);
  DEVICE_SHARED(uint32_t, weights, kColumns * kWeightPitch / 2);  // [column][token], pairs
  DEVICE_SHARED(float, tile_top, 2 * kColumns);  // of each half of a tile's tokens
  DEVICE_SHARED(float, rescale, kColumns);
  DEVICE_SHARED(float, total, 2 * kColumns);
  DEVICE_SHARED(uint32_t, poisoned, kMaxRows);
  Pack<T>* const queries = device::data(shared);
  Pack<T>* const keys = queries + kColumns * kChunks;
  Pack<T>* const values = keys + 2 * kStageChunks;
  uint32_t* const weight_pairs = device::data(weights);

  const int thread = device::thread(), lane = device::lane(), warp = device::wave();
  const int quad = lane / 4, member = lane % 4;
  const int64_t group = device::block_x() / u.kv_heads;
  const int kv_head = device::block_x() % u.kv_heads;
  const int count = u.counts[group];
  if (count == kRowByRow) return;
  const int64_t first_row = group * u.rows, width = p.tokens.size[1];
  const int rows = int(smaller(u.rows, p.q.size[0] - first_row));
  const int columns = rows * u.group;
  const Entry* entries = u.entries + group * u.rows * width;
  const T* cached_keys = static_cast<const T*>(p.k_cache.data);
  const T* cached_values = static_cast<const T*>(p.v_cache.data);

  // Queries, and zeros in the columns that are none.
  for (int i = thread; i < kColumns * kChunks; i += kThreads) {
    const int column = i / kChunks, chunk = i % kChunks;
    Pack<T> pack{};
    if (column < columns) {
      const int64_t row = first_row + column / u.group;
      const int head = kv_head * u.group + column % u.group;
      const T* from = element<const T>(p.q, row, head, chunk * 8);
      pack = *reinterpret_cast<const Pack<T>*>(from);
    }
    queries[swizzled(column, chunk)] = pack;
  }
  if (thread < kMaxRows) poisoned[thread] = 0;

  // Four lanes fetch a token: every fourth chunk of it each.
  const int own = warp * (kTile / kWarps) + quad;
  const auto entry_of = [&](int tile, int token) {
    const int i = tile * kTile + token;
    return i < count ? entries[i] : Entry{0, 0};
  };
  int stage_at[2];  // bytes of this lane's chunks member and member + 4 in a stage; 8 chunks further, 128
  for (int odd = 0; odd < 2; ++odd) stage_at[odd] = 16 * swizzled(own, member + 4 * odd);
  const auto fetch = [&](Pack<T>* to, int stage, const T* from, const Tensor<4>& cache,
                         const Entry& entry) {
    const bool valid = (entry.place_rows & kRowBits) != 0;
    const T* token =
        valid ? from + offset_of(cache, entry.page, entry.place_rows >> kMaxRows, kv_head) : from;
    DEVICE_UNROLL
    for (int i = 0; i < kChunks / 4; ++i)
      device::copy_async16(reinterpret_cast<char*>(to) + stage * kStageBytes + stage_at[i % 2] +
                               i / 2 * 128,
                           token + (member + 4 * i) * 8, valid);
  };

  // Scores: a warp has half of a tile's tokens and half of the columns.
  const int token_half = warp % 2, column_half = warp / 2;
  const int first_column = column_half * kColumns / 2;
  float top[kHalfTiles][2], sum[kHalfTiles][2];  // of this lane's columns; sum: its own tokens
  uint32_t row_bit[kHalfTiles][2];  // 0: no column
  DEVICE_UNROLL
  for (int j = 0; j < kHalfTiles; ++j)
    for (int e = 0; e < 2; ++e) {
      top[j][e] = -device::infinity();
      sum[j][e] = 0.0f;
      const int column = first_column + j * 8 + member * 2 + e;
      row_bit[j][e] = column < columns ? 1u << column / u.group : 0;
    }
  // Outputs: a warp has a quarter of the dimensions and all columns.
  float out[kDimTiles][kColumnTiles][4] = {};

  // Bytes of this lane's rows in a tile: of chunks 4 * step + c, for even and for odd steps; a step
  // further is a constant further.
  const int key_row = token_half * 16 + lane % 16, query_row = first_column + lane % 8;
  int key_at[2][2], query_at[2], value_at[kDimTiles];
  DEVICE_UNROLL
  for (int odd = 0; odd < 2; ++odd) {
    for (int i = 0; i < 2; ++i)
      key_at[odd][i] = 16 * swizzled(key_row, 4 * odd + 2 * i + lane / 16);
    query_at[odd] = 16 * swizzled(query_row, 4 * odd + lane / 8);
  }
  DEVICE_UNROLL
  for (int d = 0; d < kDimTiles; ++d)
    value_at[d] = 16 * swizzled(lane / 16 * 8 + lane % 8, (warp * kDimTiles + d) * 2 + lane / 8 % 2);
  const int weight_at = ((lane / 16 * 8 + lane % 8) * kWeightPitch + lane / 8 % 2 * 8) * 2;

  // 32 dimensions of the scores of a tile's half of the tokens and half of the columns.
  float score[kHalfTiles][4];
  const auto add_scores = [&](int stage, int step) {
    const int further = stage * kStageBytes + step / 2 * 128;
    uint32_t a[2][4];
    device::load_matrices(a[0], keys, key_at[step % 2][0] + further);
    device::load_matrices(a[1], keys, key_at[step % 2][1] + further);
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j) {
      uint32_t b[4];
      device::load_matrices(b, queries, query_at[step % 2] + step / 2 * 128 + j * 8 * kTokenBytes);
      const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      device::multiply_16x8x16<T>(score[j], a[0], low);
      device::multiply_16x8x16<T>(score[j], a[1], high);
    }
  };
  struct Listing {
    uint32_t near, far;  // rows that list this lane's two tokens of a tile
  };
  const auto listing_of = [&](int tile) {
    const int token = token_half * 16 + quad;
    return Listing{entry_of(tile, token).place_rows, entry_of(tile, token + 8).place_rows};
  };
  // Scales and masks them: a token that a row does not list has the weight 0, and a live score that
  // is not finite is NaN. True where a score is far above what its column is taken against.
  const auto mask_scores = [&](const Listing& listing) {
    bool exceeds = false;
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j)
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float limit = top[j][e] + kSlack;
        DEVICE_UNROLL
        for (int f = 0; f < 2; ++f) {
          float& s = score[j][2 * f + e];
          const bool live = ((f ? listing.far : listing.near) & row_bit[j][e]) != 0;
          s = live ? device::fma(s, u.scale, s - s) : -device::infinity();  // inf - inf is NaN
          exceeds = exceeds || s > limit;
        }
      }
    return exceeds;
  };
  // By the whole block, and seldom: what the columns are taken against becomes their largest score,
  // and all sums follow.
  const auto raise_tops = [&] {
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j)
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float most = device::max(score[j][e], score[j][2 + e]);
        most = device::max(most, device::shuffle_xor(most, 4));
        most = device::max(most, device::shuffle_xor(most, 8));
        most = device::max(most, device::shuffle_xor(most, 16));
        if (quad == 0) tile_top[token_half * kColumns + first_column + j * 8 + member * 2 + e] = most;
      }
    device::sync_block();
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j)
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = first_column + j * 8 + member * 2 + e;
        const float most =
            device::max(top[j][e], device::max(tile_top[column], tile_top[kColumns + column]));
        const float factor = most == top[j][e] ? 1.0f : device::exp2_fast(top[j][e] - most);
        top[j][e] = most;
        sum[j][e] *= factor;
        if (quad == 0 && token_half == 0) rescale[column] = factor;
      }
    device::sync_block();
    DEVICE_UNROLL
    for (int j = 0; j < kColumnTiles; ++j)
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float factor = rescale[j * 8 + member * 2 + e % 2];
        DEVICE_UNROLL
        for (int d = 0; d < kDimTiles; ++d) out[d][j][e] *= factor;
      }
  };
  // Weights of the scores, in place of the previous tile's.
  const auto weigh = [&] {
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j) {
      float weight[4];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float base = top[j][e] == -device::infinity() ? 0.0f : top[j][e];
        weight[e] = device::exp2_fast(score[j][e] - base);
        weight[2 + e] = device::exp2_fast(score[j][2 + e] - base);
        sum[j][e] += weight[e] + weight[2 + e];
      }
      DEVICE_UNROLL
      for (int f = 0; f < 2; ++f) {
        const uint32_t pair =
            device::transpose_8x8(device::pack_halves<T>(weight[2 * f], weight[2 * f + 1]));
        weight_pairs[((first_column + j * 8 + quad) * kWeightPitch + token_half * 16 + f * 8) / 2 +
                     member] = pair;
      }
    }
  };
  // 16 dimensions of the weighted values of 16 tokens; `weight` holds those of these tokens.
  uint32_t weight[kColumnTiles / 2][4];
  const auto load_weights = [&](int k) {
    DEVICE_UNROLL
    for (int j = 0; j < kColumnTiles; j += 2)
      device::load_matrices(weight[j / 2], weight_pairs,
                            weight_at + (j * 8 * kWeightPitch + k * 16) * 2);
  };
  const auto add_values = [&](int stage, int k, int d) {
    uint32_t a[4];
    device::load_matrices_transposed(a, values,
                                     value_at[d] + stage * kStageBytes + k * 16 * kTokenBytes);
    DEVICE_UNROLL
    for (int j = 0; j < kColumnTiles; ++j) {
      const uint32_t pair[2] = {weight[j / 2][j % 2 * 2], weight[j / 2][j % 2 * 2 + 1]};
      device::multiply_16x8x16<T>(out[d][j], a, pair);
    }
  };

  // The scores of a tile are computed beside the values of the tile before it, so that a stretch
  // between two barriers has both matrix products. Keys are fetched one tile earlier than values.
  const int tiles = (count + kTile - 1) / kTile;
  // What is needed of the list is loaded a tile before it is used.
  Entry value_entry = entry_of(1, own), key_entry = entry_of(2, own);
  Listing listing = listing_of(0), next_listing = listing_of(1);
  if (tiles > 0) {
    const Entry first = entry_of(0, own);
    fetch(keys, 0, cached_keys, p.k_cache, first);
    fetch(values, 0, cached_values, p.v_cache, first);
    device::copy_async_commit();
    fetch(keys, 1, cached_keys, p.k_cache, value_entry);
    device::copy_async_commit();
    device::copy_async_wait<1>();
    device::sync_block();
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j)
      for (int e = 0; e < 4; ++e) score[j][e] = 0.0f;
    DEVICE_UNROLL
    for (int step = 0; step < kSteps; ++step) add_scores(0, step);
    if (device::sync_block_any(mask_scores(listing))) raise_tops();
    weigh();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    // There: keys of tile + 1, values of this tile. On their way from here on: the next of both.
    const int stage = tile % 2;
    device::copy_async_wait<0>();
    device::sync_block();  // also: the weights are there, and the buffers of the next are read
    fetch(values, stage ^ 1, cached_values, p.v_cache, value_entry);
    fetch(keys, stage, cached_keys, p.k_cache, key_entry);
    device::copy_async_commit();
    value_entry = key_entry;
    key_entry = entry_of(tile + 3, own);
    listing = next_listing;
    next_listing = listing_of(tile + 2);
    DEVICE_UNROLL
    for (int j = 0; j < kHalfTiles; ++j)
      for (int e = 0; e < 4; ++e) score[j][e] = 0.0f;
    // Both products in turn: the scores alone are few chains of dependent instructions.
    DEVICE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      if (step % kDimTiles == 0) load_weights(step / kDimTiles);
      add_scores(stage ^ 1, step);
      add_values(stage, step / kDimTiles, step % kDimTiles);
    }
    // Also: all have read the weights.
    if (device::sync_block_any(mask_scores(listing))) raise_tops();
    if (tile + 1 < tiles) weigh();
  }
  device::copy_async_wait<0>();

  // Sums of the columns, over the lanes and the halves of the tokens.
  device::sync_block();
  DEVICE_UNROLL
  for (int j = 0; j < kHalfTiles; ++j)
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      float s = sum[j][e];
      s += device::shuffle_xor(s, 4);
      s += device::shuffle_xor(s, 8);
      s += device::shuffle_xor(s, 16);
      const int column = first_column + j * 8 + member * 2 + e;
      if (quad == 0) total[token_half * kColumns + column] = s;
      if (quad == 0 && token_half == 0) tile_top[column] = top[j][e];
    }
  device::sync_block();
  DEVICE_UNROLL
  for (int j = 0; j < kColumnTiles; ++j)
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int column = j * 8 + member * 2 + e;
      const float s = total[column] + total[kColumns + column];
      bool finite = s < device::infinity();
      DEVICE_UNROLL
      for (int d = 0; d < kDimTiles; ++d)
        DEVICE_UNROLL
        for (int f = 0; f < 4; f += 2) {
          float& o = out[d][j][f + e];
          o = s == 0.0f ? 0.0f : device::divide(o, s);
          finite = finite && device::abs(o) < device::infinity();
        }
      if (column < columns && !finite) device::atomic_or(&poisoned[column / u.group], 1u);
      // Through shared memory, [column][dimension] with the keys' swizzle, so that rows are whole.
      DEVICE_UNROLL
      for (int d = 0; d < kDimTiles; ++d)
        DEVICE_UNROLL
        for (int f = 0; f < 2; ++f) {
          const int dim = (warp * kDimTiles + d) * 16 + f * 8 + quad;
          queries[swizzled(column, dim / 8)].x[dim % 8] =
              device::from_float<T>(out[d][j][2 * f + e]);
        }
    }
  device::sync_block();
  for (int i = thread; i < columns * kChunks; i += kThreads) {
    const int column = i / kChunks, chunk = i % kChunks, row = column / u.group;
    if (poisoned[row]) continue;
    T* to = element<T>(p.output, first_row + row, kv_head * u.group + column % u.group, chunk * 8);
    const Pack<T> pack = queries[swizzled(column, chunk)];
    if (u.packed_output)
      *reinterpret_cast<Pack<T>*>(to) = pack;
    else
      for (int e = 0; e < 8; ++e) to[e * p.output.stride[2]] = pack.x[e];
  }
  if (p.lse.data && thread < columns && !poisoned[thread / u.group]) {
    const float s = total[thread] + total[kColumns + thread];
    *element<float>(p.lse, first_row + thread / u.group, kv_head * u.group + thread % u.group) =
        s == 0.0f ? -device::infinity() : float(tile_top[thread]) + device::log2(s);
  }
  if (thread < rows) u.served[(first_row + thread) * u.kv_heads + kv_head] = poisoned[thread] == 0;
}

constexpr int kStaticShared = 8192;  // more than the static arrays take
constexpr size_t kSharedBytes = size_t(kColumns * kChunks + 4 * kStageChunks) * 16;

int rows_of_group(int64_t group) { return int(std::min<int64_t>(kMaxRows, kColumns / group)); }

Union make_union(const AttendParams& p, device::Carver& carver) {
  Union u{};
  const int64_t rows = p.q.size[0], kv_heads = p.k_cache.size[2];
  u.group = int(p.q.size[1] / kv_heads);
  u.rows = rows_of_group(u.group);
  u.kv_heads = int(kv_heads);
  u.groups = (rows + u.rows - 1) / u.rows;
  blocks(u.groups * kv_heads);
  u.entries = carver.take<Entry>(uint64_t(u.groups * u.rows * p.tokens.size[1]));
  u.counts = carver.take<int32_t>(uint64_t(u.groups));
  u.served = carver.take<uint8_t>(uint64_t(rows * kv_heads));
  u.scale = float(1.4426950408889634 / std::sqrt(double(kDims)));
  return u;
}

template <class T>
void launch_kernels(const AttendParams& p, const Union& u, void* stream) {
  device::launch(list_kernel, device::Grid{u.groups}, kListThreads, 0, stream, p, u);
  device::launch(attend_union_kernel<T>, blocks(u.groups * u.kv_heads), kThreads, kSharedBytes,
                 stream, p, u);
}

}  // namespace

bool shares_tokens(const AttendParams& p) {
  if (shares_tiles(p)) return true;
  const int64_t rows = p.q.size[0], kv_heads = p.k_cache.size[2];
  const int64_t group = p.q.size[1] / kv_heads;
  if (p.q.size[2] != kDims || group * 2 > kColumns || p.k_cache.size[1] >> (32 - kMaxRows))
    return false;
  if (int64_t(kSharedBytes) + kStaticShared > device::shared_bytes_of_block()) return false;
  // Neighbours of one request are wanted, and enough of them.
  const int64_t groups = rows / rows_of_group(group);
  return rows > kRowsOfRequest * p.block_table.size[0] &&
         groups * kv_heads >= device::multiprocessors();
}

const uint8_t* plan_union(const AttendParams& p, device::Carver& carver) {
  return shares_tiles(p) ? plan_tiles(p, carver) : make_union(p, carver).served;
}

const uint8_t* launch_union(const AttendParams& p, device::Carver& carver, void* stream) {
  if (shares_tiles(p)) return launch_tiles(p, carver, stream);
  Union u = make_union(p, carver);
  u.packed_output = dense_runs(p.output, 16);
  if (p.q.dtype == TK_BF16)
    launch_kernels<bf16>(p, u, stream);
  else
    launch_kernels<f16>(p, u, stream);
  return u.served;
}

}  // namespace qsa
