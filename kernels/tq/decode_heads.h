// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a fast decode of 256 dimensions with 3-bit or fp8 keys (decode_heads_stream.h).
// Queries and weights are the A operands (rows = heads), the cache's codes are B: a code is looked
// up once for all heads, and weights need not be transposed.
//
// A team of four waves has a KV head and four tiles a turn. Each wave takes the scores of one tile
// in all dimensions and leaves the weights in shared memory; then it takes the values of all four
// tiles in a quarter of the dimensions. Limits and unit (decode_tile.h) are the team's: a wave
// whose tile needs others says so beside its weights, and all waves of the team follow.
#pragma once

#include "tq/decode_heads_keys.h"
#include "tq/decode_heads_values.h"

namespace tq {

// What a team has in shared memory beside weights: what its waves say of their tiles, and what they
// would have to keep in registers all the time.
inline constexpr int kNoTile = 2;
struct TeamNotes {
  int raised[kTeamTiles];
  float unit[kTeamTiles];
  float limit[kTeamTiles][16];
  float gain[16];       // what the scores of a head are multiplied by
  uint32_t head_at[4];  // of the KV head in a tile
  KeyNotes keys;
};
// Of a lane and tile: the registers of an A operand; of many heads, those of the low halves, too.
// Where room is short these are only the half of them that is not zero.
inline constexpr int weight_bytes(int key_bits, bool many) {
  return !many ? 16 : key_bits == 8 ? 24 : 32;
}
// Of a team, in shared memory: weights, notes, and at the end sums of each wave.
inline constexpr int team_weight_bytes(int key_bits, bool many) {
  return kTeamTiles * 32 * weight_bytes(key_bits, many);
}
inline constexpr int team_bytes(int key_bits, bool many) {
  return team_weight_bytes(key_bits, many) + static_cast<int>(sizeof(TeamNotes));
}
static_assert(sizeof(TeamNotes) % 16 == 0);

struct alignas(16) Quad {
  uint32_t x[4];
};
struct alignas(8) Pair {
  uint32_t x[2];
};

template <int kKeyBits, int kValueBits, bool kMany>
class HeadsMath {
  static constexpr int kColumns = kMany ? kManyHeads : kSomeHeads;
  static constexpr int kWeightBytes = team_weight_bytes(kKeyBits, kMany) / kTeamTiles;

 public:
  // `own`: which of the team's waves this is. `team`: the team's bytes.
  DEVICE_FUNCTION void place(const StreamParams& p, int kv_head, int own, uint8_t* team) {
    own_ = own;
    weights_ = team + device::lane() * 16;
    notes_ = reinterpret_cast<TeamNotes*>(team + team_weight_bytes(kKeyBits, kMany));
    if (device::lane() == 0)
      notes_->head_at[own] = static_cast<uint32_t>(kv_head * p.tile.head_stride);
    if (own == 0 && device::lane() == 0) keys_.fill(p, &notes_->keys);
  }

  // `queries`: of the team's heads, in shared memory. A barrier is to follow.
  DEVICE_FUNCTION void begin(const StreamParams& p, int tile, SharedAddress queries) {
    const int lane = device::lane();
    keys_.begin(queries, &notes_->keys);
    if (own_ == 0 && lane < 16)
      notes_->gain[lane] = lane < kColumns ? p.gains[int64_t{tile} * kColumns + lane] : 0.0f;
  }

  // The weights of the wave's own tile, `live` of whose tokens are.
  DEVICE_FUNCTION void weigh(const StreamParams& p, SharedAddress tile, int live,
                             HeadsState& state) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const bool low_group = group < 4;
    const HeadsPlaces at = places(p);
    float s[2][2], t[2];  // [tokens 0-7, 8-15][2 * member and the next]; the second head's
    keys_.scores(p, tile, at, s, t);
    float scale[2][2], zero[2][2];
    const float gain[2] = {notes_->gain[group], notes_->gain[8 + group % 4]};
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const SharedAddress slot =
          tile + at.pair + static_cast<uint32_t>((8 * e + j) * p.tile.token_stride);
      scale[e][j] = load_half(slot + p.format.scale_at);
      zero[e][j] = load_half(slot + p.format.zero_at);
      s[e][j] *= gain[0];
    }
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) t[j] *= gain[1];
    if (live < kTileTokens) {  // masked, not weighed 0: 0 * NaN is NaN
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) DEVICE_UNROLL
      for (int j = 0; j < 2; ++j) {
        if (8 * e + 2 * member + j < live) continue;
        s[e][j] = -device::infinity(), scale[e][j] = zero[e][j] = 0;
        if (low_group == (e == 0)) t[j] = -device::infinity();
      }
    }

    float limit[2] = {state.limit[0], state.limit[1]}, unit = state.unit;
    float top[2] = {device::max(device::max(s[0][0], s[0][1]), device::max(s[1][0], s[1][1])),
                    kMany ? device::max(t[0], t[1]) : -device::infinity()};
    float top_scale = device::max(device::max(device::abs(scale[0][0]), device::abs(scale[0][1])),
                                  device::max(device::abs(scale[1][0]), device::abs(scale[1][1])));
    const bool raised =
        device::any(top[0] > limit[0] || top[1] > limit[1] || top_scale * unit > kMostWeight);
    if (raised) {
      DEVICE_UNROLL
      for (int mask = 1; mask < 4; mask *= 2) {
        top[0] = device::max(top[0], device::shuffle_xor(top[0], mask));
        top[1] = device::max(top[1], device::shuffle_xor(top[1], mask));
        top_scale = device::max(top_scale, device::shuffle_xor(top_scale, mask));
      }
      top[1] = device::max(top[1], device::shuffle_xor(top[1], 16));
      unit = device::min(unit, unit_for(top_scale));
      DEVICE_UNROLL
      for (int c = 0; c < 2; ++c) {
        // Whole numbers: weights of different limits differ by powers of two.
        if (top[c] > limit[c]) limit[c] = device::floor(top[c]) + (kSlack + 1);
        const float factor = device::exp2_fast(state.limit[c] - limit[c]);
        state.sum[c] *= factor, state.zero[c] *= factor;
      }
      if (member == 0) notes_->limit[own_][group] = limit[0];
      if (member == 0 && low_group) notes_->limit[own_][8 + group] = limit[1];
    }
    if (lane == 0) notes_->raised[own_] = raised, notes_->unit[own_] = unit;

    uint32_t high[2], low[2];  // of head `group`
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e)
      weights(s[e], limit[0], scale[e], zero[e], unit, state.sum[0], state.zero[0], high[e],
              low[e]);
    uint8_t* const to = weights_ + own_ * kWeightBytes;
    if constexpr (!kMany) {
      *reinterpret_cast<Quad*>(to) = {{high[0], low[0], high[1], low[1]}};
    } else {
      // Groups 0-3 have tokens 0-7 of the second head, groups 4-7 the others. Rows group + 8 are
      // to be its high halves, then its low ones.
      const float own_scale[2] = {low_group ? scale[0][0] : scale[1][0],
                                  low_group ? scale[0][1] : scale[1][1]};
      const float own_zero[2] = {low_group ? zero[0][0] : zero[1][0],
                                 low_group ? zero[0][1] : zero[1][1]};
      uint32_t high2, low2;
      weights(t, limit[1], own_scale, own_zero, unit, state.sum[1], state.zero[1], high2, low2);
      const uint32_t other = device::shuffle_xor(low_group ? low2 : high2, 16);
      *reinterpret_cast<Quad*>(to) = {
          {high[0], low_group ? high2 : other, high[1], low_group ? other : low2}};
      if constexpr (kKeyBits == 8)
        *reinterpret_cast<Pair*>(to + 32 * 16 - 8 * lane) = {{low[0], low[1]}};
      else
        *reinterpret_cast<Quad*>(to + 32 * 16) = {{low[0], 0, low[1], 0}};
    }
  }

  // Instead, where no token of the tile is live.
  DEVICE_FUNCTION void weigh_none(const HeadsState& state) const {
    if (device::lane() == 0) notes_->raised[own_] = kNoTile, notes_->unit[own_] = state.unit;
  }

  // Adds the values of the team's tiles, which lie one behind the other from `tile` on, in the
  // wave's dimensions.
  DEVICE_FUNCTION void attend(const StreamParams& p, SharedAddress tile, HeadsState& state) const {
    SharedAddress weights = device::shared_address(weights_);
    const device::Words4 raised = device::load_shared16(device::shared_address(notes_->raised));
    const Values values = values_of(p);
    if ((raised.x[0] | raised.x[1] | raised.x[2] | raised.x[3]) == 0) {
      const auto add_all = [&](auto two_words) {
        DEVICE_UNROLL
        for (int t = 0; t < kTeamTiles; ++t) {
          multiply_values<two_words()>(p, tile, values, device::load_shared16(weights),
                                       low_weights(weights), state);
          tile += static_cast<uint32_t>(p.tile.bytes), weights += kWeightBytes;
        }
      };
      if (values.two_words())
        add_all(std::true_type());
      else
        add_all(std::false_type());
      return;
    }
    const HeadsState before = state;
    follow(raised, state);
    DEVICE_ROLLED
    for (int t = 0; t < kTeamTiles; ++t) {
      if (notes_->raised[t] != kNoTile) {
        float f[2];
        factors(t, before, state, f);
        const uint32_t f0 = device::pack_halves<device::f16>(f[0], f[0]);
        const uint32_t f1 = kMany ? device::pack_halves<device::f16>(f[1], f[1]) : f0;
        device::Words4 a = device::load_shared16(weights);
        a.x[0] = device::multiply_f16x2(a.x[0], f0), a.x[1] = device::multiply_f16x2(a.x[1], f1);
        a.x[2] = device::multiply_f16x2(a.x[2], f0), a.x[3] = device::multiply_f16x2(a.x[3], f1);
        device::Words4 low = low_weights(weights);
        low.x[0] = device::multiply_f16x2(low.x[0], f0);
        low.x[2] = device::multiply_f16x2(low.x[2], f0);
        multiply_values<true>(p, tile, values, a, low, state);
      }
      tile += static_cast<uint32_t>(p.tile.bytes), weights += kWeightBytes;
    }
  }

  // The sums of the team, and of both halves of the weights. Contains a barrier. `sums`: the team's
  // weights are no longer needed, and lie where these go.
  DEVICE_FUNCTION void join(HeadsState& state) {
    const int lane = device::lane(), group = lane / 4;
    float* const all = reinterpret_cast<float*>(weights_ - lane * 16);
    DEVICE_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      state.sum[c] += device::shuffle_xor(state.sum[c], mask);
      state.zero[c] += device::shuffle_xor(state.zero[c], mask);
    }
    if constexpr (kMany) {
      state.sum[1] += device::shuffle_xor(state.sum[1], 16);
      state.zero[1] += device::shuffle_xor(state.zero[1], 16);
    }
    if (lane % 4 == 0) {
      float* const mine = all + own_ * 32;
      mine[group] = state.sum[0], mine[16 + group] = state.zero[0];
      if (group < 4) mine[8 + group] = state.sum[1], mine[24 + group] = state.zero[1];
    }
    device::sync_block();
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      state.sum[c] = state.zero[c] = 0;
      const int at = c == 0 ? group : 8 + group % 4;
      DEVICE_UNROLL
      for (int w = 0; w < kTeamWaves; ++w)
        state.sum[c] += all[w * 32 + at], state.zero[c] += all[w * 32 + 16 + at];
    }
    DEVICE_UNROLL
    for (int f = 0; f < kQuarterFields; ++f) DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      if constexpr (kMany)
        state.output[f][2 + j] += device::shuffle_xor(state.output[f][2 + j], 16);
      else
        state.output[f][j] += state.output[f][2 + j];
    }
  }
  DEVICE_FUNCTION int own() const { return own_; }
  // The first dimension of a run of values of the lanes of a group.
  DEVICE_FUNCTION int dim(const StreamParams& p, int group, int run) const {
    return values_of(p).dim(group, run);
  }

 private:
  using Values = QuarterValues<kValueBits, kKeyBits == 8>;
  // What the high halves of the weights leave, of many heads.
  DEVICE_FUNCTION static device::Words4 low_weights(SharedAddress weights) {
    if constexpr (!kMany) return device::Words4{};
    if constexpr (kKeyBits != 8) return device::load_shared16(weights + 32 * 16);
    const device::Words2 x =
        device::load_shared8(weights + static_cast<uint32_t>(32 * 16 - 8 * device::lane()));
    return {{x.x[0], 0, x.x[1], 0}};
  }
  template <bool kTwoWords>
  DEVICE_FUNCTION static void multiply_values(const StreamParams& p, SharedAddress tile,
                                              const Values& values, const device::Words4& weights,
                                              const device::Words4& low, HeadsState& state) {
    uint32_t x0[20], x8[20];
    values.template load<kTwoWords>(tile, x0);
    values.template load<kTwoWords>(tile + static_cast<uint32_t>(8 * p.tile.token_stride), x8);
    const uint32_t a[4] = {weights.x[0], weights.x[1], weights.x[2], weights.x[3]};
    const uint32_t a_low[4] = {low.x[0], low.x[1], low.x[2], low.x[3]};
    DEVICE_UNROLL
    for (int f = 0; f < kQuarterFields; ++f) {
      const uint32_t b[2] = {x0[f], x8[f]};
      device::multiply_16x8x16<device::f16>(state.output[f], a, b);
      if constexpr (kMany) device::multiply_16x8x16<device::f16>(state.output[f], a_low, b);
    }
  }

  DEVICE_FUNCTION Values values_of(const StreamParams& p) const {
    const uint32_t even = places(p).pair + static_cast<uint32_t>(p.format.value_at);
    return {even, even + static_cast<uint32_t>(p.tile.token_stride), own_};
  }
  DEVICE_FUNCTION HeadsPlaces places(const StreamParams& p) const {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const uint32_t head = device::load_shared4(device::shared_address(notes_->head_at + own_));
    const auto stride = static_cast<uint32_t>(p.tile.token_stride);
    HeadsPlaces at;
    at.key = head + static_cast<uint32_t>(group) * stride;
    at.codes = at.key + static_cast<uint32_t>(member * (kKeyBits == 8 ? 4 : 24));
    at.shift = (at.codes & 2) * 8, at.codes &= ~uint32_t{3};
    at.pair = head + static_cast<uint32_t>(2 * member) * stride;
    return at;
  }

  // Of two tokens and a head: weights times scales, as halves and what they leave.
  DEVICE_FUNCTION static void weights(const float (&s)[2], float limit, const float (&scale)[2],
                                      const float (&zero)[2], float unit, float& sum,
                                      float& of_zero, uint32_t& high, uint32_t& low) {
    using device::f16;
    const float p0 = device::exp2_fast(s[0] - limit), p1 = device::exp2_fast(s[1] - limit);
    sum += p0 + p1;
    of_zero = device::fma(p0, zero[0], device::fma(p1, zero[1], of_zero));
    const float w0 = p0 * (scale[0] * unit), w1 = p1 * (scale[1] * unit);
    high = device::pack_halves<f16>(w0, w1);
    low = device::pack_halves<f16>(w0 - device::low_half<f16>(high),
                                   w1 - device::high_half<f16>(high));
  }

  // What the weights of a tile are multiplied by to be relative to the limits of `now`.
  DEVICE_FUNCTION void factors(int tile, const HeadsState& before, const HeadsState& now,
                               float (&f)[2]) const {
    const int group = device::lane() / 4;
    const bool raised = notes_->raised[tile] == 1;
    const float units = now.unit * inverse_of_power(raised ? notes_->unit[tile] : before.unit);
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const int at = c == 0 ? group : 8 + group % 4;
      const float limit = raised && (c == 0 || kMany) ? notes_->limit[tile][at] : before.limit[c];
      f[c] = device::exp2_fast(limit - now.limit[c]) * units;
    }
  }
  DEVICE_FUNCTION void follow(const device::Words4& raised, HeadsState& state) const {
    const int group = device::lane() / 4;
    float limit[2] = {state.limit[0], state.limit[1]}, own[2] = {limit[0], limit[1]};
    float unit = state.unit;
    DEVICE_UNROLL
    for (int t = 0; t < kTeamTiles; ++t) {
      if (raised.x[t] != 1) continue;
      unit = device::min(unit, notes_->unit[t]);
      DEVICE_UNROLL
      for (int c = 0; c < (kMany ? 2 : 1); ++c) {
        const float x = notes_->limit[t][c == 0 ? group : 8 + group % 4];
        limit[c] = device::max(limit[c], x);
        if (t == own_) own[c] = x;
      }
    }
    const float units = unit * inverse_of_power(state.unit);
    float f[2];
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const float of_sums = device::exp2_fast(own[c] - limit[c]);
      state.sum[c] *= of_sums, state.zero[c] *= of_sums;
      f[c] = device::exp2_fast(state.limit[c] - limit[c]) * units;
      state.limit[c] = limit[c];
    }
    state.unit = unit;
    DEVICE_UNROLL
    for (int i = 0; i < kQuarterFields; ++i) DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) state.output[i][e] *= f[kMany ? e / 2 : 0];
  }

  int own_;
  uint8_t* weights_;
  TeamNotes* notes_;
  HeadsKeys<kKeyBits, kMany> keys_;
};

}  // namespace tq
