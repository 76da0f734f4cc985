// SPDX-License-Identifier: Apache-2.0
// Queries of a fast decode as B fragments (columns = heads): rotated in fp32, scaled by a power of
// two into the middle of f16, and split into a half and what it leaves, so that nothing below 2^-22
// of the largest element is lost. Up to 4 heads share one fragment, the left-over parts in columns
// 4 ... 7; more heads have a fragment for each part. For decode_heads.h: in that file's own form.
//
// A block makes kOutputs dimensions of kRows columns, a thread up to two of each. All columns of
// a fragment are written: those without a head are zero.
#pragma once

#include "tq/decode_heads_queries.h"
#include "tq/decode_wide.h"
#include "tq/rotation.h"

namespace tq {

inline constexpr int kQueryThreads = 256;

struct QueryParams {
  Strided<3> query;  // [B,Hq,D]
  Rotation pi;
  bool rotate;
  int key_bits;
  int kv_heads, group;    // query heads of a KV head
  int tiles, tile_heads;  // of a group: tiles of at most tile_heads heads
  int columns;            // of a tile: 4, 8 or, for decode_wide.h, 16; for decode_heads.h 8 or 12
  bool heads;             // decode_heads.h
  qsa::Divider by_columns{1}, by_tiles{1}, by_kv_heads{1};
  bool whole_pi;        // rows of Pi are read by 16 bytes
  int rows;             // B * kv_heads * tiles * columns
  float scale;          // of scores in base 2
  uint16_t* fragments;  // [B, kv_heads * tiles][D / 16][lane][2 or 4 registers][2 halves]
  float* gains;         // [rows]: what a score is multiplied by
};

inline constexpr int query_outputs(int head_dim) { return head_dim >= 128 ? 32 : 16; }
inline constexpr int query_rows(int head_dim) { return head_dim == 256 ? 16 : 32; }
inline uint64_t query_shared_bytes(int head_dim) {
  const int floats = query_rows(head_dim) * head_dim + query_outputs(head_dim) * (head_dim + 4);
  return sizeof(float) * static_cast<uint64_t>(floats);
}

// Exponent of a power of two that brings the largest magnitude into [2^6, 2^7): an orthogonal
// rotation then stays below 2^11. Returns the power; its inverse in `back`.
DEVICE_FUNCTION float power_to_middle(float largest, float& back) {
  constexpr int kMiddle = 6;
  int exponent = static_cast<int>(device::bit_cast<uint32_t>(largest) >> 23 & 255);
  if (exponent == 0 || exponent == 255) exponent = 127 + kMiddle;  // zeros, NaN: left as they are
  exponent = device::max(exponent, kMiddle + 1);
  back = device::bit_cast<float>(static_cast<uint32_t>(exponent - kMiddle) << 23);
  return device::bit_cast<float>(static_cast<uint32_t>(device::min(254 + kMiddle - exponent, 254))
                                 << 23);
}

// A power of two that brings a vector of squared length `squares` to a length of at most 2^20, so
// that no orthogonal rotation makes an element of more than 21 bits.
DEVICE_FUNCTION float power_to_bytes(float squares) {
  const int exponent = static_cast<int>(device::bit_cast<uint32_t>(squares) >> 23 & 255) - 127;
  const int half = device::max(exponent + 1, 0) / 2;
  return device::bit_cast<float>(static_cast<uint32_t>(127 + 19 - device::min(half, 60)) << 23);
}

template <int kDim>
DEVICE_KERNEL(kQueryThreads)
prepare_queries(QueryParams p) {
  constexpr int kOutputs = query_outputs(kDim), kRows = query_rows(kDim), kPitch = kDim + 4;
  constexpr int kSide = 16, kOwnRows = kRows / kSide, kOwnOutputs = kOutputs / kSide;
  static_assert(kSide * kSide == kQueryThreads);
  DEVICE_DYNAMIC_SHARED(float, shared);
  DEVICE_SHARED(float, powers, kRows);
  DEVICE_SHARED(float, more_powers, kRows);  // for decode_heads.h
  float* const q = device::data(shared);
  float* const pi = q + kRows * kDim;
  device::allow_next();
  const int thread = device::thread(), lane = device::lane();
  const int first_row = device::block_x() * kRows;
  const int first_output = device::block_y() * kOutputs;

  // All loads are under way before the first is waited for. A wave takes rows wave, wave + waves...
  constexpr int kWaves = kQueryThreads / device::kWave, kRounds = kRows / kWaves;
  constexpr int kPiFours = (kOutputs * kDim / 4 + kQueryThreads - 1) / kQueryThreads,
                kOwnDims = (kDim + device::kWave - 1) / device::kWave;
  Four pi_own[kPiFours];
  float q_own[kRounds][kOwnDims];
  if (p.rotate) {
    DEVICE_UNROLL
    for (int k = 0; k < kPiFours; ++k) {
      const int i = (thread + k * kQueryThreads) * 4;
      if (i >= kOutputs * kDim) break;
      const float* const from =
          p.pi.data + (first_output + i / kDim) * p.pi.stride[0] + i % kDim * p.pi.stride[1];
      if (p.whole_pi) {
        pi_own[k] = *reinterpret_cast<const Four*>(from);
      } else {
        DEVICE_UNROLL
        for (int e = 0; e < 4; ++e) pi_own[k].x[e] = from[e * p.pi.stride[1]];
      }
    }
  }
  int64_t at[kRounds];
  DEVICE_UNROLL
  for (int k = 0; k < kRounds; ++k) {
    const int row = first_row + device::wave() + k * kWaves;
    const int tile = divide(row, p.by_columns), column = row - tile * p.columns;
    const int pair = divide(tile, p.by_tiles), of_group = tile - pair * p.tiles;
    const int in_group = of_group * p.tile_heads + column;
    const int sequence = divide(pair, p.by_kv_heads), kv_head = pair - sequence * p.kv_heads;
    at[k] = -1;
    if (row < p.rows && column < p.tile_heads && in_group < p.group)
      at[k] = sequence * p.query.stride[0] + (kv_head * p.group + in_group) * p.query.stride[1] +
              lane * p.query.stride[2];
  }
  const int64_t step = device::kWave * p.query.stride[2];
  const auto load = [&](auto get) {
    DEVICE_UNROLL
    for (int k = 0; k < kRounds; ++k) DEVICE_UNROLL
    for (int e = 0; e < kOwnDims; ++e)
      q_own[k][e] = at[k] < 0 || lane + e * device::kWave >= kDim ? 0 : get(at[k] + e * step);
  };
  if (p.query.dtype == TK_F16)
    load([&](int64_t i) {
      return device::low_half<device::f16>(static_cast<const uint16_t*>(p.query.data)[i]);
    });
  else
    load([&](int64_t i) {
      return device::low_half<device::bf16>(static_cast<const uint16_t*>(p.query.data)[i]);
    });
  DEVICE_UNROLL
  for (int k = 0; k < kRounds; ++k) {
    const int r = device::wave() + k * kWaves;
    float largest = 0;
    DEVICE_UNROLL
    for (int e = 0; e < kOwnDims; ++e) {
      largest = device::max(largest, device::abs(q_own[k][e]));
      if (lane + e * device::kWave < kDim) q[r * kDim + lane + e * device::kWave] = q_own[k][e];
    }
    largest = device::wave_max(largest);
    float back, power = power_to_middle(largest, back);
    if constexpr (kDim == kHeadsDim) {
      if (p.heads && p.rotate) {
        float squares = 0;
        DEVICE_UNROLL
        for (int e = 0; e < kOwnDims; ++e) {
          const float x = q_own[k][e] * power;
          squares = device::fma(x, x, squares);
        }
        squares = device::wave_sum(squares);
        const float more = power_to_bytes(squares);
        if (lane == 0) more_powers[r] = more;
        // A NaN or infinite query has no bytes.
        back *= squares < device::infinity() ? 256 * inverse_of_power(more) : device::nan();
      }
    }
    if (lane == 0) {
      powers[r] = power;
      if (first_output == 0 && first_row + r < p.rows) p.gains[first_row + r] = p.scale * back;
    }
  }
  if (p.rotate) {
    DEVICE_UNROLL
    for (int k = 0; k < kPiFours; ++k) {
      const int i = (thread + k * kQueryThreads) * 4;
      if (i < kOutputs * kDim)
        *reinterpret_cast<Four*>(pi + i / kDim * kPitch + i % kDim) = pi_own[k];
    }
  }
  device::sync_block();

  // Rows thread / kSide + k * kSide, dimensions thread % kSide + o * kSide of the block's.
  const float* const rows = q + thread / kSide * kDim;
  const float* const outputs = pi + thread % kSide * kPitch;
  float y[kOwnRows][kOwnOutputs];
  if (p.rotate) {
    float sums[kOwnRows][kOwnOutputs][2] = {};
    for (int j = 0; j < kDim; j += 4) {
      Four x[kOwnRows], w[kOwnOutputs];
      DEVICE_UNROLL
      for (int k = 0; k < kOwnRows; ++k)
        x[k] = *reinterpret_cast<const Four*>(rows + k * kSide * kDim + j);
      DEVICE_UNROLL
      for (int o = 0; o < kOwnOutputs; ++o)
        w[o] = *reinterpret_cast<const Four*>(outputs + o * kSide * kPitch + j);
      DEVICE_UNROLL
      for (int k = 0; k < kOwnRows; ++k) DEVICE_UNROLL
      for (int o = 0; o < kOwnOutputs; ++o) DEVICE_UNROLL
      for (int e = 0; e < 4; ++e)
        sums[k][o][e % 2] = device::fma(x[k].x[e], w[o].x[e], sums[k][o][e % 2]);
    }
    DEVICE_UNROLL
    for (int k = 0; k < kOwnRows; ++k) DEVICE_UNROLL
    for (int o = 0; o < kOwnOutputs; ++o) y[k][o] = sums[k][o][0] + sums[k][o][1];
  } else {
    DEVICE_UNROLL
    for (int k = 0; k < kOwnRows; ++k) DEVICE_UNROLL
    for (int o = 0; o < kOwnOutputs; ++o)
      y[k][o] = rows[k * kSide * kDim + first_output + thread % kSide + o * kSide];
  }

  DEVICE_UNROLL
  for (int own = 0; own < kOwnRows * kOwnOutputs; ++own) {
    const int k = own / kOwnOutputs, o = own % kOwnOutputs;
    const int d = first_output + thread % kSide + o * kSide;
    const KeyPlace place = key_place(p.key_bits, kDim, d);
    const int r = thread / kSide + k * kSide;
    const int row = first_row + r;
    if (row >= p.rows) continue;
    const int tile_row = divide(row, p.by_columns), column = row - tile_row * p.columns;
    const float scaled = y[k][o] * powers[r];
    const uint32_t high = device::pack_halves<device::f16>(scaled, 0);
    if constexpr (kDim == kHeadsDim) {
      if (p.heads) {
        const bool many = p.columns == kManyHeads;
        const int64_t tile = int64_t{tile_row} * heads_query_bytes(p.key_bits, many);
        auto* const bytes = reinterpret_cast<uint8_t*>(p.fragments) + tile;
        if (p.key_bits == 8) {
          put_query_half(reinterpret_cast<uint16_t*>(bytes), many, column, d,
                         static_cast<uint16_t>(high));
        } else {
          constexpr float kMost = 8.3e6f;  // below 127 << 16
          const float x = device::max(-kMost, device::min(kMost, scaled * more_powers[r]));
          put_query_bytes(bytes, many, column, d, static_cast<int>(device::floor(x + 0.5f)));
        }
        continue;
      }
    }
    const float rest = scaled - device::low_half<device::f16>(high);
    const uint32_t low = device::pack_halves<device::f16>(rest, 0);
    const int registers = p.columns / 2;
    const int64_t matrix = int64_t{tile_row} * (kDim / kSteps16) + place.pair / 2;
    const auto half_at = [&](int col, int part) {
      return ((matrix * device::kWave + 4 * col + place.member) * registers + 2 * part +
              place.pair % 2) *
                 2 +
             place.half;
    };
    if (p.columns == kWideColumns) {
      uint16_t* const tile = p.fragments + int64_t{tile_row} * (2 * kWideColumns * kDim);
      tile[wide_half_at(column, false, place)] = static_cast<uint16_t>(high);
      tile[wide_half_at(column, true, place)] = static_cast<uint16_t>(low);
      continue;
    }
    p.fragments[half_at(column, 0)] = static_cast<uint16_t>(high);
    p.fragments[p.columns == 4 ? half_at(column + 4, 0) : half_at(column, 1)] =
        static_cast<uint16_t>(low);
  }
}

}  // namespace tq
