// SPDX-License-Identifier: Apache-2.0
// A wave's arithmetic in the pass over the cache of a fast decode (decode_stream.h): the state of a
// sequence and what a tile of 16 tokens does to it.
#pragma once

#include "tq/decode_plan.h"

namespace tq {

// What a wave has of its sequence. Lanes hold columns (heads) 2 * member and the next; of `output`,
// rows (dimensions) group and group + 8 of each matrix.
//
// A weight is 2^(score - limit), at most 1. The limit is set kSlack above the largest score of a
// tile and moves only when a score passes it, so tiles seldom rescale. Weights times value scale
// are brought below 2^15 by `unit`, a power of two that shrinks when a larger scale comes: as f16
// they neither overflow nor, in two halves, lose what matters beside the largest.
inline constexpr float kSlack = 7, kMostWeight = 32768;

// 1 / x of a power of two, not of the largest.
DEVICE_FUNCTION float inverse_of_power(float x) {
  return device::bit_cast<float>((254u << 23) - device::bit_cast<uint32_t>(x));
}

template <int kDim>
struct Attention {
  static constexpr int kHeads = 2, kMatrices = kDim / 16;
  static constexpr int kFloats = 4 * kMatrices + 4;  // of for_each()
  float limit[2];
  float unit;
  float sum[2], zero[2];  // of weights, of weights * value zero, of this lane's tokens
  float output[kMatrices][4];

  DEVICE_FUNCTION void clear() {
    unit = kMostWeight * 0x1p24f;  // for scales up to the smallest f16
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      limit[c] = -3e38f;  // -inf would give NaN in the first rescaling
      sum[c] = zero[c] = 0;
    }
    DEVICE_UNROLL
    for (int m = 0; m < kMatrices; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) output[m][i] = 0;
  }
  DEVICE_FUNCTION void rescale(const float (&new_limit)[2], float new_unit) {
    float f0 = device::exp2_fast(limit[0] - new_limit[0]);
    float f1 = device::exp2_fast(limit[1] - new_limit[1]);
    sum[0] *= f0, sum[1] *= f1, zero[0] *= f0, zero[1] *= f1;
    const float units = new_unit * inverse_of_power(unit);
    f0 *= units, f1 *= units;
    DEVICE_UNROLL
    for (int m = 0; m < kMatrices; ++m) {
      output[m][0] *= f0, output[m][1] *= f1;
      output[m][2] *= f0, output[m][3] *= f1;
    }
    limit[0] = new_limit[0], limit[1] = new_limit[1], unit = new_unit;
  }
  template <class F>
  DEVICE_FUNCTION void for_each(F f) {  // f(index, head, in units, number), in a fixed order
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) f(2 * c, c, false, sum[c]), f(2 * c + 1, c, false, zero[c]);
    DEVICE_UNROLL
    for (int m = 0; m < kMatrices; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) f(4 + 4 * m + i, i % 2, true, output[m][i]);
  }
};

// What a lane hands over where waves share the dimensions of a head.
inline constexpr int kHalfFloats = 6, kScoresBytes = 2 * kWaves * kHalfFloats * device::kWave * 4;

// The unit for scales of up to `scale`.
DEVICE_FUNCTION float unit_for(float scale) {
  const float most = device::min(device::max(scale, 0x1p-24f), 65536.0f);
  const uint32_t power = (device::bit_cast<uint32_t>(most) + 0x7fffffu) & 0x7f800000u;
  return kMostWeight * inverse_of_power(device::bit_cast<float>(power));
}

// kStride: bytes from token to token, a multiple of four; kAnyStride: any, kEvenStride: of four.
inline constexpr int kAnyStride = -1, kEvenStride = 0;
template <int kKeyBits, int kValueBits, int kDim, bool kPacked, int kStride = kAnyStride>
struct TileMath {
  static constexpr int kSteps = kDim / 16;
  static constexpr int kQueryRegisters = kPacked ? 2 : 4;
  static constexpr int kTiles = kPacked ? 2 : 1;  // that a wave takes at once
  static constexpr bool kEven =
      kStride != kAnyStride && kDim == 128 && (kValueBits == 3 || kKeyBits != 8);
  using State = Attention<kDim>;
  using Values = std::conditional_t<kEven, EvenValueWords<kValueBits>,
                                    ValueWords<kValueBits, kDim, kKeyBits == 8>>;

  uint32_t query[kSteps][kQueryRegisters];
  float gain[2];  // of the lane's columns

  // Where the lane's bytes lie in a tile: key codes and scale of token `group`, value codes of
  // tokens 2 * member and the next. 8 tokens further all lie alike.
  DEVICE_FUNCTION void place(const StreamParams& p, int kv_head, int half) {
    place(p, half, [&](int token) {
      return static_cast<uint32_t>(kv_head * p.tile.head_stride) +
             static_cast<uint32_t>(token) * stride_of(p);
    });
  }
  // slot_at(token): where a token's slot lies in a tile.
  template <class SlotAt>
  DEVICE_FUNCTION void place(const StreamParams& p, int half, SlotAt slot_at) {
    const int group = lane_group(), member = lane_member();
    half_ = half;
    slot_at_ = slot_at(group);
    keys_ =
        KeyWords<kKeyBits, kDim>(slot_at_ + static_cast<uint32_t>(16 * kKeyBits * half), member);
    const auto values_at = static_cast<uint32_t>(p.format.value_at + 16 * kValueBits * half);
    const uint32_t even = slot_at(2 * member) + values_at;
    if constexpr (kEven)
      values_ = Values(even, group);
    else
      values_ = Values(even, slot_at(2 * member + 1) + values_at, group);
  }
  DEVICE_FUNCTION int half() const { return half_; }
  // The dimension of a lane's field.
  DEVICE_FUNCTION int value_dim(int group, int field) const {
    const int d = field_dim<kValueBits, kDim>(group, field);
    if constexpr (kEven) return (d - values_.turned()) & (kDim - 1);
    return d;
  }

  // Fields 8 half ... 8 half + 7 of a head's output, which are twice four dimensions end to end,
  // times `codes` and plus `zero`. Of two tiles the lanes add up, each in a half of its own. c: of
  // the lane's columns.
  DEVICE_FUNCTION static void half_output(const State& state, int half, int c, float codes,
                                          float zero, Four (&to)[2]) {
    static_assert(kDim == 128);
    DEVICE_UNROLL
    for (int f = 0; f < 8; ++f) {
      const float low = state.output[f / 2][f % 2 * 2 + c];
      const float high = state.output[f / 2 + 4][f % 2 * 2 + c];
      float x = half ? high : low;
      if constexpr (kPacked) x += device::shuffle_xor(half ? low : high, 2);
      const int bits = half ? 24 - field_bit<kValueBits>(f + 8) : 24 - field_bit<kValueBits>(f);
      to[f / 4].x[f % 4] = device::fma(x, codes * static_cast<float>(1 << bits), zero);
    }
  }
  // Of the same column c, which head that is.
  DEVICE_FUNCTION static int output_column(int c) {
    return kPacked ? 2 * (lane_member() % 2) + c : 2 * lane_member() + c;
  }

  // Which of two tiles a lane has the weights of: columns 4 ... 7 of the products, which hold what
  // is left of the queries of columns 0 ... 3, have no other use.
  DEVICE_FUNCTION static int own_tile() { return kPacked ? lane_member() >> 1 : 0; }

  DEVICE_FUNCTION void load_queries(const StreamParams& p, int64_t tile) {
    const int lane = device::lane(), columns = kPacked ? 4 : 8;
    const uint32_t* const from =
        p.queries + ((tile * p.halves + half_) * kSteps * device::kWave + lane) * kQueryRegisters;
    struct alignas(4 * kQueryRegisters) Registers {
      uint32_t r[kQueryRegisters];
    };
    DEVICE_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const auto own =
          *reinterpret_cast<const Registers*>(from + s * device::kWave * kQueryRegisters);
      DEVICE_UNROLL
      for (int r = 0; r < kQueryRegisters; ++r) query[s][r] = own.r[r];
    }
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c)
      gain[c] = p.gains[tile * columns + (lane_member() * 2 + c) % columns];
  }

  // Dot products of the tiles' tokens with the queries, and for norm correction the squares of the
  // keys: s[0], s[1] of token `group`, s[2], s[3] of token group + 8. Of two tiles a lane gets the
  // one that own_tile() says.
  DEVICE_FUNCTION void dot_products(const StreamParams& p, const SharedAddress (&tiles)[kTiles],
                                    SharedAddress lane_table, float (&s)[4],
                                    float (&squares)[2]) const {
    constexpr int kEights = 2 * kTiles, kSums = kPacked ? 1 : 2;
    SharedAddress codes[kEights];  // of tokens group and group + 8 of each tile
    DEVICE_UNROLL
    for (int e = 0; e < kEights; ++e)
      codes[e] = tiles[e / 2] + static_cast<uint32_t>(e % 2) * 8 * stride_of(p);
    float sums[kTiles][4], keys[kEights];  // keys: squares
    if constexpr (kKeyBits == 8) {
      float d[kTiles][kSums][4] = {};
      const auto multiply = [&](bool e4m3fn) {
        DEVICE_UNROLL
        for (int k = 0; k < kSteps; ++k) DEVICE_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          const uint32_t w0 = keys_.load_fp8(codes[2 * t], k);
          const uint32_t w8 = keys_.load_fp8(codes[2 * t + 1], k);
          const uint32_t a[4] = {fp8_pair(e4m3fn, w0, 0), fp8_pair(e4m3fn, w8, 0),
                                 fp8_pair(e4m3fn, w0, 1), fp8_pair(e4m3fn, w8, 1)};
          const uint32_t b[2] = {query[k][0], query[k][1]};
          device::multiply_16x8x16<device::f16>(d[t][0], a, b);
          if constexpr (!kPacked) {
            const uint32_t rest[2] = {query[k][2], query[k][3]};
            device::multiply_16x8x16<device::f16>(d[t][kSums - 1], a, rest);
          }
        }
      };
      if (p.format.fp8 == TK_E4M3FN)
        multiply(true);
      else
        multiply(false);
      DEVICE_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        DEVICE_UNROLL
        for (int i = 0; i < 4; ++i)
          sums[t][i] = kPacked ? d[t][0][i] : d[t][0][i] + d[t][kSums - 1][i];
        if (p.format.fp8 == TK_E4M3FNUZ) mark_nans(codes[2 * t], codes[2 * t + 1], sums[t]);
      }
    } else {
      DEVICE_UNROLL
      for (int t = 0; t < kTiles; ++t)
        centroid_products(codes[2 * t], codes[2 * t + 1], lane_table, sums[t], keys + 2 * t);
      DEVICE_UNROLL
      for (int i = 0; i < 2; ++i)
        squares[i] = kPacked && own_tile() ? keys[2 * kTiles - 2 + i] : keys[i];
    }
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      s[i] = sums[0][i];
      if constexpr (kPacked) {  // the other lane has the part of the query in the other columns
        const float other = own_tile() ? sums[0][i] : sums[1][i];
        s[i] = (own_tile() ? sums[1][i] : sums[0][i]) + device::shuffle_xor(other, 2);
      }
    }
  }

  // A token's pairs as they are loaded make a fragment: rows 0 ... 7 are the tokens' rounded keys,
  // rows 8 ... 15 what the rounding left of the same tokens. Against the tokens themselves the
  // diagonals are the squares of the keys. Each sum's instructions wait for each other, so there
  // are six of them, and a step's pairs are loaded while the step before is multiplied.
  DEVICE_FUNCTION void centroid_products(SharedAddress codes0, SharedAddress codes8,
                                         SharedAddress lane_table, float (&sums)[4],
                                         float* squares) const {
    const int group = lane_group();
    float d[2][4] = {}, n[2][4] = {};
    uint32_t w[2][KeyWords<kKeyBits, kDim>::kWords];
    device::Words2 x[2], y[2];
    keys_.load(codes0, w[0]), keys_.load(codes8, w[1]);
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      x[e] = look_up_pair<kKeyBits>(lane_table, w[e], 0);
      y[e] = look_up_pair<kKeyBits>(lane_table, w[e], 1);
    }
    DEVICE_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const uint32_t a[4] = {x[e].x[0], x[e].x[1], y[e].x[0], y[e].x[1]};
        const uint32_t own[2] = {x[e].x[0], x[e].x[1]}, next[2] = {y[e].x[0], y[e].x[1]};
        if (k + 1 < kSteps) {
          x[e] = look_up_pair<kKeyBits>(lane_table, w[e], 2 * k + 2);
          y[e] = look_up_pair<kKeyBits>(lane_table, w[e], 2 * k + 3);
        }
        const uint32_t b[2] = {query[k][0], query[k][1]};
        device::multiply_16x8x16<device::f16>(d[e], a, b);
        device::multiply_16x8x8(n[e], own, own[0]);
        device::multiply_16x8x8(n[e], next, next[0]);
        if constexpr (!kPacked) {
          const uint32_t rest[2] = {query[k][2], query[k][3]};
          device::multiply_16x8x16<device::f16>(d[e], a, rest);
        }
      }
    }
    const int diagonal = group * 4 + (group >> 1);  // the lane that holds column `group`
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int i = group & 1;
      const float high = i ? n[e][1] : n[e][0], low = i ? n[e][3] : n[e][2];
      squares[e] = device::shuffle(device::fma(2, low, high), diagonal);
      sums[2 * e] = d[e][0] + d[e][2];
      sums[2 * e + 1] = d[e][1] + d[e][3];
    }
  }

  // fp8_pair() makes numbers of e4m3fnuz's NaN bytes: their tokens' scores become NaN here.
  DEVICE_FUNCTION void mark_nans(SharedAddress codes0, SharedAddress codes8, float (&s)[4]) const {
    uint32_t nan0 = 0, nan8 = 0;
    DEVICE_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      nan0 |= nan_bytes_e4m3fnuz(keys_.load_fp8(codes0, k));
      nan8 |= nan_bytes_e4m3fnuz(keys_.load_fp8(codes8, k));
    }
    nan0 &= 0x80808080u, nan8 &= 0x80808080u;
    if (!device::any((nan0 | nan8) != 0)) return;
    DEVICE_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
      nan0 |= device::shuffle_xor(nan0, mask);
      nan8 |= device::shuffle_xor(nan8, mask);
    }
    if (nan0) s[0] = s[1] = device::nan();
    if (nan8) s[2] = s[3] = device::nan();
  }

  // Takes tiles into the state: s and squares are the dot products of the lane's own tile, `tokens`
  // of whose 16 tokens are live. `whole`: of all
  // tiles all tokens are live. `key_constant`: what is added to the squares for norm correction;
  // without it, and for fp8 keys, a factor of all scores.
  DEVICE_FUNCTION void attend(const StreamParams& p, const SharedAddress (&tiles)[kTiles],
                              int tokens, bool whole, float (&s)[4], const float (&squares)[2],
                              float key_constant, State& state) const {
    const int group = lane_group();
    const SharedAddress slot0 = (own_tile() ? tiles[kTiles - 1] : tiles[0]) + slot_at_;
    const SharedAddress slot8 = slot0 + 8 * stride_of(p);
    float scale0 = load_half(slot0 + p.format.scale_at),
          zero0 = load_half(slot0 + p.format.zero_at);
    float scale8 = load_half(slot8 + p.format.scale_at),
          zero8 = load_half(slot8 + p.format.zero_at);
    float factor0 = key_constant, factor8 = key_constant;
    if constexpr (kKeyBits != 8) {
      if (p.norm_correction) {
        factor0 = device::rsqrt_fast(squares[0] + key_constant);
        factor8 = device::rsqrt_fast(squares[1] + key_constant);
      }
      factor0 *= load_half(slot0 + p.format.norm_at);
      factor8 *= load_half(slot8 + p.format.norm_at);
    }
    s[0] *= factor0 * gain[0], s[1] *= factor0 * gain[1];
    s[2] *= factor8 * gain[0], s[3] *= factor8 * gain[1];
    if (!whole) {  // masked, not weighed 0: 0 * NaN is NaN
      if (group >= tokens) s[0] = s[1] = -device::infinity(), scale0 = zero0 = 0;
      if (group + 8 >= tokens) s[2] = s[3] = -device::infinity(), scale8 = zero8 = 0;
    }

    const float most0 = device::max(s[0], s[2]), most1 = device::max(s[1], s[3]);
    const float scale = device::max(device::abs(scale0), device::abs(scale8));
    if (device::any(most0 > state.limit[0] || most1 > state.limit[1] ||
                    scale * state.unit > kMostWeight)) {
      // Over the tokens; lanes of a group that have the same tokens differ in heads.
      float top0 = most0, top1 = most1, top_scale = scale;
      DEVICE_UNROLL
      for (int mask = kTiles == 2 ? 2 : 4; mask < device::kWave; mask *= 2) {
        top0 = device::max(top0, device::shuffle_xor(top0, mask));
        top1 = device::max(top1, device::shuffle_xor(top1, mask));
        top_scale = device::max(top_scale, device::shuffle_xor(top_scale, mask));
      }
      const float limit[2] = {top0 > state.limit[0] ? top0 + kSlack : state.limit[0],
                              top1 > state.limit[1] ? top1 + kSlack : state.limit[1]};
      state.rescale(limit, device::min(state.unit, unit_for(top_scale)));
    }
    const float p0 = device::exp2_fast(s[0] - state.limit[0]);
    const float p1 = device::exp2_fast(s[1] - state.limit[1]);
    const float p2 = device::exp2_fast(s[2] - state.limit[0]);
    const float p3 = device::exp2_fast(s[3] - state.limit[1]);
    state.sum[0] += p0 + p2;
    state.sum[1] += p1 + p3;
    state.zero[0] = device::fma(p0, zero0, device::fma(p2, zero8, state.zero[0]));
    state.zero[1] = device::fma(p1, zero0, device::fma(p3, zero8, state.zero[1]));
    scale0 *= state.unit, scale8 *= state.unit;
    add_values(p, tiles, p0 * scale0, p1 * scale0, p2 * scale8, p3 * scale8, state);
  }

  // Adds weights * codes. Weights as two halves, like the queries.
  DEVICE_FUNCTION void add_values(const StreamParams& p, const SharedAddress (&tiles)[kTiles],
                                  float w0, float w1, float w2, float w3, State& state) const {
    using device::f16;
    const uint32_t high0 = device::pack_halves<f16>(w0, w1);
    const uint32_t high8 = device::pack_halves<f16>(w2, w3);
    const uint32_t low0 = device::pack_halves<f16>(w0 - device::low_half<f16>(high0),
                                                   w1 - device::high_half<f16>(high0));
    const uint32_t low8 = device::pack_halves<f16>(w2 - device::low_half<f16>(high8),
                                                   w3 - device::high_half<f16>(high8));
    if constexpr (kPacked) {
      // Fragments of a tile have the halves in columns 0 ... 3 and what they leave in 4 ... 7. Each
      // lane has half of that of its own tile, and lacks one of the other tile.
      const bool second = own_tile() != 0;
      const uint32_t from0 = device::shuffle_xor(second ? high0 : low0, 2);
      const uint32_t from8 = device::shuffle_xor(second ? high8 : low8, 2);
      const uint32_t first0 = second ? from0 : high0, first8 = second ? from8 : high8;
      const uint32_t second0 = second ? low0 : from0, second8 = second ? low8 : from8;
      const uint32_t b0[2] = {device::transpose_8x8(first0), device::transpose_8x8(first8)};
      const uint32_t b1[2] = {device::transpose_8x8(second0), device::transpose_8x8(second8)};
      multiply_values(p, tiles[0], b0, b0, state);
      multiply_values(p, tiles[kTiles - 1], b1, b1, state);
    } else {
      const uint32_t b[2] = {device::transpose_8x8(high0), device::transpose_8x8(high8)};
      const uint32_t rest[2] = {device::transpose_8x8(low0), device::transpose_8x8(low8)};
      multiply_values(p, tiles[0], b, rest, state);
    }
  }

  // Weights (b and, unless they are packed, what they leave) times a tile's codes.
  DEVICE_FUNCTION void multiply_values(const StreamParams& p, SharedAddress tile,
                                       const uint32_t (&b)[2], const uint32_t (&b_rest)[2],
                                       State& state) const {
    using device::f16;
    uint32_t x0[20], x8[20];
    if constexpr (kEven) {
      values_.load(tile, 0, stride_of(p), x0);
      values_.load(tile, 8 * stride_of(p), stride_of(p), x8);
    } else {
      values_.load(tile, x0);
      values_.load(tile + 8 * stride_of(p), x8);
    }
    DEVICE_UNROLL
    for (int m = 0; m < State::kMatrices; ++m) {
      const uint32_t a[4] = {x0[2 * m], x0[2 * m + 1], x8[2 * m], x8[2 * m + 1]};
      device::multiply_16x8x16<f16>(state.output[m], a, b);
      if constexpr (!kPacked) device::multiply_16x8x16<f16>(state.output[m], a, b_rest);
    }
  }

 private:
  DEVICE_FUNCTION static uint32_t stride_of(const StreamParams& p) {
    return static_cast<uint32_t>(kStride > 0 ? kStride : p.tile.token_stride);
  }

  int half_;  // of the dimensions
  uint32_t slot_at_;
  KeyWords<kKeyBits, kDim> keys_;
  Values values_;
};

}  // namespace tq
