// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a fast decode where a KV head of 256 dimensions with centroid keys has more
// than 8 query heads (decode_stream.h). Queries and weights are the A operands (rows = up to 16
// heads), the cache's codes are B: a key is looked up once for all heads, and weights need not be
// transposed.
//
// Two waves share a KV head and two tiles. Each takes the scores of one tile in all dimensions, and
// the values of both tiles in half of them; they meet for the largest scores and for the weights.
#pragma once

#include "tq/decode_tile.h"

namespace tq {

inline constexpr int kWideDim = 256, kWideHalf = 128, kWideColumns = 16;
// Of a wave, in shared memory: largest scores, sums, weights.
inline constexpr int kWideTops = 32, kWideSums = 32,
                     kWideFloats = kWideTops + kWideSums + 8 * device::kWave;
inline constexpr int kWideQueryBytes = kWideColumns * kWideDim * 4;  // of a head tile

// Where a half of a query lies among a head tile's. `low`: it is what another half left. A lane's
// words of a pair are low, low, high, high: of heads `group` and group + 8.
DEVICE_FUNCTION int wide_half_at(int column, bool low, KeyPlace place) {
  const int lane = 4 * (column % 8) + place.member;
  return 2 * ((place.pair * device::kWave + lane) * 4 + (low ? 0 : 2) + column / 8) + place.half;
}

// Lanes hold heads `group` and group + 8; of `output` dimensions (field_dim()) of groups 2 * member
// and the next, of one head and then of the other.
struct WideAttention {
  static constexpr int kHeads = 2, kFields = kWideHalf / 8;
  static constexpr int kFloats = 4 * kFields + 2 * kHeads;
  float limit[kHeads];
  float unit;
  float sum[kHeads], zero[kHeads];  // of the tiles whose scores are this wave's
  float output[kFields][4];

  DEVICE_FUNCTION void clear() {
    unit = kMostWeight * 0x1p24f;
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c) limit[c] = -3e38f, sum[c] = zero[c] = 0;
    DEVICE_UNROLL
    for (int f = 0; f < kFields; ++f) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) output[f][i] = 0;
  }
  DEVICE_FUNCTION void rescale(const float (&new_limit)[kHeads], float new_unit) {
    float f[kHeads];
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c) {
      f[c] = device::exp2_fast(limit[c] - new_limit[c]);
      sum[c] *= f[c], zero[c] *= f[c], limit[c] = new_limit[c];
      f[c] *= new_unit * inverse_of_power(unit);
    }
    DEVICE_UNROLL
    for (int m = 0; m < kFields; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) output[m][i] *= f[i / 2];
    unit = new_unit;
  }
  template <class F>
  DEVICE_FUNCTION void for_each(F f) {  // f(index, head, in units, number), in a fixed order
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c) f(2 * c, c, false, sum[c]), f(2 * c + 1, c, false, zero[c]);
    DEVICE_UNROLL
    for (int m = 0; m < kFields; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) f(2 * kHeads + 4 * m + i, i / 2, true, output[m][i]);
  }
};

template <int kKeyBits, int kValueBits>
class WideMath {
  static constexpr int kHeads = 2;  // of a lane

 public:
  static constexpr int kTiles = 2;
  using State = WideAttention;

  DEVICE_FUNCTION void place(const StreamParams& p, int kv_head, int half) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    half_ = half;
    const auto head = static_cast<uint32_t>(kv_head * p.tile.head_stride);
    slot_at_ = head + static_cast<uint32_t>(lane % 16 * p.tile.token_stride);
    keys_ = KeyWords<kKeyBits, kWideHalf>(head + static_cast<uint32_t>(group * p.tile.token_stride),
                                          member);
    const uint32_t even = head + static_cast<uint32_t>(2 * member * p.tile.token_stride +
                                                       p.format.value_at + 16 * kValueBits * half);
    values_ = ValueWords<kValueBits, kWideHalf, false>(
        even, even + static_cast<uint32_t>(p.tile.token_stride), group);
  }
  DEVICE_FUNCTION int half() const { return half_; }

  // `queries`, in shared memory, is filled by the block.
  DEVICE_FUNCTION void begin(const StreamParams& p, int tile, SharedAddress queries, float* mine) {
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c)
      gain_[c] = p.gains[int64_t{tile} * kWideColumns + 8 * c + device::lane() / 4];
    queries_ = queries + static_cast<uint32_t>(device::lane() * 16);
    mine_ = mine;
  }

  // A turn of a wave; contains barriers. `live`: of both tiles.
  DEVICE_FUNCTION void turn(const StreamParams& p, const SharedAddress (&tiles)[2],
                            const int (&live)[2], SharedAddress lane_table, float key_constant,
                            State& state) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const bool some = (live[0] | live[1]) != 0;
    const float* const other = mine_ + (half_ ? -kWideFloats : kWideFloats);
    float s[2][2 * kHeads];  // [tokens 0-7, 8-15 of the own tile][head][2 * member and the next]
    float top[kHeads], scale = 0, zero = 0, top_scale = 0;
    if (some) {
      const int own_live = half_ ? live[1] : live[0];
      float factor = scores(p, half_ ? tiles[1] : tiles[0], lane_table, key_constant, s);
      const SharedAddress slot = (half_ ? tiles[1] : tiles[0]) + slot_at_;
      scale = load_half(slot + p.format.scale_at), zero = load_half(slot + p.format.zero_at);
      factor *= load_half(slot + p.format.norm_at);
      if (lane % 16 >= own_live) scale = zero = 0;
      DEVICE_UNROLL
      for (int c = 0; c < kHeads; ++c) top[c] = -device::infinity();
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) DEVICE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int token = 8 * e + 2 * member + j;
        const float of_token = device::shuffle(factor, token);
        DEVICE_UNROLL
        for (int c = 0; c < kHeads; ++c) {
          float& x = s[e][2 * c + j];
          x = token < own_live ? x * (of_token * gain_[c]) : -device::infinity();
          top[c] = device::max(top[c], x);
        }
      }
      DEVICE_UNROLL
      for (int mask = 1; mask < 4; mask *= 2) DEVICE_UNROLL
      for (int c = 0; c < kHeads; ++c)
        top[c] = device::max(top[c], device::shuffle_xor(top[c], mask));
      top_scale = device::wave_max(device::abs(scale));
      if (member == 0) DEVICE_UNROLL
      for (int c = 0; c < kHeads; ++c) mine_[8 * c + group] = top[c];
      if (lane == 0) mine_[16] = top_scale;
    }
    device::sync_block();
    uint32_t own[kWeights];
    if (some) {
      float limit[kHeads];
      bool higher = false;
      DEVICE_UNROLL
      for (int c = 0; c < kHeads; ++c) {
        top[c] = device::max(top[c], other[8 * c + group]);
        higher = higher || top[c] > state.limit[c];
        limit[c] = top[c] > state.limit[c] ? top[c] + kSlack : state.limit[c];
      }
      top_scale = device::max(top_scale, other[16]);
      if (device::any(higher || top_scale * state.unit > kMostWeight))
        state.rescale(limit, device::min(state.unit, unit_for(top_scale)));
      scale *= state.unit;
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float of_scale[2], of_zero[2];
        DEVICE_UNROLL
        for (int j = 0; j < 2; ++j) {
          of_scale[j] = device::shuffle(scale, 8 * e + 2 * member + j);
          of_zero[j] = device::shuffle(zero, 8 * e + 2 * member + j);
        }
        DEVICE_UNROLL
        for (int c = 0; c < kHeads; ++c) {
          using device::f16;
          const float p0 = device::exp2_fast(s[e][2 * c] - state.limit[c]);
          const float p1 = device::exp2_fast(s[e][2 * c + 1] - state.limit[c]);
          state.sum[c] += p0 + p1;
          state.zero[c] = device::fma(p0, of_zero[0], device::fma(p1, of_zero[1], state.zero[c]));
          const float w0 = p0 * of_scale[0], w1 = p1 * of_scale[1];
          const uint32_t high = device::pack_halves<f16>(w0, w1);
          const uint32_t low = device::pack_halves<f16>(w0 - device::low_half<f16>(high),
                                                        w1 - device::high_half<f16>(high));
          own[2 * e + c] = high, own[4 + 2 * e + c] = low;
        }
      }
      auto* const to = reinterpret_cast<uint32_t*>(mine_ + kWideTops + kWideSums) + lane;
      DEVICE_UNROLL
      for (int i = 0; i < kWeights; ++i) to[i * device::kWave] = own[i];
    }
    device::sync_block();
    if (some) {
      const auto* const from =
          reinterpret_cast<const uint32_t*>(other + kWideTops + kWideSums) + lane;
      multiply_values(p, half_ ? tiles[1] : tiles[0], own, state);
      DEVICE_UNROLL
      for (int i = 0; i < kWeights; ++i) own[i] = from[i * device::kWave];
      multiply_values(p, half_ ? tiles[0] : tiles[1], own, state);
    }
  }

  // The sums of both waves, over all lanes of a head; contains a barrier.
  DEVICE_FUNCTION void join_sums(State& state) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    float* const mine = mine_ + kWideTops;
    const float* const other = mine + (half_ ? -kWideFloats : kWideFloats);
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c) {
      DEVICE_UNROLL
      for (int mask = 1; mask < 4; mask *= 2) {
        state.sum[c] += device::shuffle_xor(state.sum[c], mask);
        state.zero[c] += device::shuffle_xor(state.zero[c], mask);
      }
      if (member == 0) mine[8 * c + group] = state.sum[c], mine[16 + 8 * c + group] = state.zero[c];
    }
    device::sync_block();
    DEVICE_UNROLL
    for (int c = 0; c < kHeads; ++c) {
      state.sum[c] += other[8 * c + group];
      state.zero[c] += other[16 + 8 * c + group];
    }
  }

 private:
  static constexpr int kWeights = 8;  // registers

  // Dot products of the tile with all heads; returns what norm correction makes a factor of the
  // scores of token lane % 16.
  DEVICE_FUNCTION float scores(const StreamParams& p, SharedAddress tile, SharedAddress lane_table,
                               float key_constant, float (&s)[2][2 * kHeads]) const {
    const int lane = device::lane();
    // A pair as it is looked up is a fragment: its halves, and what rounding them left, which meet
    // what is left of the queries and the queries' halves.
    float d[2][2][4] = {}, n[2][4] = {};  // n: squares of the keys, on the diagonal
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const SharedAddress codes = tile + 16 * kKeyBits * h;
      uint32_t w[2][KeyWords<kKeyBits, kWideHalf>::kWords];
      keys_.load(codes, w[0]);
      keys_.load(codes + static_cast<uint32_t>(8 * p.tile.token_stride), w[1]);
      DEVICE_UNROLL
      for (int i = 0; i < kWideHalf / 8; ++i) {
        const SharedAddress at =
            queries_ + static_cast<uint32_t>((h * (kWideHalf / 8) + i) * device::kWave * 16);
        const device::Words2 low = device::load_shared8(at), high = device::load_shared8(at + 8);
        const uint32_t both[4] = {low.x[0], low.x[1], high.x[0], high.x[1]};
        const uint32_t halves[2] = {high.x[0], high.x[1]};
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const device::Words2 x = look_up_pair<kKeyBits>(lane_table, w[e], i);
          const uint32_t own[2] = {x.x[0], x.x[1]};
          device::multiply_16x8x16<device::f16>(d[e][0], both, own);
          device::multiply_16x8x8(d[e][1], halves, own[0]);
          device::multiply_16x8x8(n[e], own, own[0]);
        }
      }
    }
    float factor = key_constant;
    if (p.norm_correction) {  // the square of token t of eight is in lane 4 t + t / 2
      const int odd = lane / 4 % 2, t = lane % 8, from = 4 * t + t / 2;
      const float square0 =
          device::shuffle(device::fma(2, odd ? n[0][3] : n[0][2], odd ? n[0][1] : n[0][0]), from);
      const float square8 =
          device::shuffle(device::fma(2, odd ? n[1][3] : n[1][2], odd ? n[1][1] : n[1][0]), from);
      factor = device::rsqrt_fast((lane % 16 < 8 ? square0 : square8) + key_constant);
    }
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) s[e][i] = d[e][0][i] + d[e][1][i];
    return factor;
  }

  DEVICE_FUNCTION void multiply_values(const StreamParams& p, SharedAddress tile,
                                       const uint32_t (&weights)[kWeights], State& state) const {
    uint32_t x0[20], x8[20];
    values_.load(tile, x0);
    values_.load(tile + static_cast<uint32_t>(8 * p.tile.token_stride), x8);
    const uint32_t high[4] = {weights[0], weights[1], weights[2], weights[3]};
    const uint32_t low[4] = {weights[4], weights[5], weights[6], weights[7]};
    DEVICE_UNROLL
    for (int f = 0; f < State::kFields; ++f) {
      const uint32_t b[2] = {x0[f], x8[f]};
      device::multiply_16x8x16<device::f16>(state.output[f], high, b);
      device::multiply_16x8x16<device::f16>(state.output[f], low, b);
    }
  }

  int half_;
  uint32_t slot_at_;
  KeyWords<kKeyBits, kWideHalf> keys_;
  ValueWords<kValueBits, kWideHalf, false> values_;
  float gain_[kHeads];
  SharedAddress queries_;
  float* mine_;
};

}  // namespace tq
