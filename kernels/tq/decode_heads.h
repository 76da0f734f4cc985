// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a fast decode of 256 dimensions with 3-bit or fp8 keys (decode_heads_stream.h).
// Queries and weights are the A operands (rows = heads), the cache's codes are B: a code is looked
// up once for all heads, and weights need not be transposed.
//
// A team of four waves has a KV head and four tiles a turn. Each wave takes the scores of one tile
// in all dimensions and leaves the weights in shared memory; then it takes the values of all four
// tiles in a quarter of the dimensions. Limits and unit (decode_tile.h) are the team's: a wave
// whose tile needs others says so beside its weights, and all waves of the team follow.
//
// Centroid keys are bytes: 16 bits in fixed point, each half looked up in two registers of 8 bytes
// by permute_bytes(). With queries of three bytes the sums are exact integers; only the product of
// the low bytes is left out.
#pragma once

#include "tq/decode_heads_queries.h"
#include "tq/decode_tile.h"

namespace tq {

inline constexpr int kTeamWaves = 4, kTeamTiles = 4, kQuarter = kHeadsDim / kTeamWaves;
inline constexpr int kQuarterFields = kQuarter / 8;  // a lane's dimensions of values

// What a team has in shared memory beside weights: what its waves say of their tiles, and what they
// would have to keep in registers all the time.
inline constexpr int kNoTile = 2;
struct TeamNotes {
  int raised[kTeamTiles];
  float unit[kTeamTiles];
  float limit[kTeamTiles][16];
  float gain[16];       // what the scores of a head are multiplied by
  uint32_t head_at[4];  // of the KV head in a tile
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

// Lanes hold head `group` and, of many, head 8 + group % 4. `output`: of two neighbouring lanes'
// dimensions, of head `group`; then, of few heads, what the low halves of its weights make; of
// many, that of head 8 + group % 4, of the high halves in groups 0-3, of the low ones in groups
// 4-7.
struct HeadsState {
  float limit[2], unit;
  float sum[2], zero[2];  // of the tiles whose scores are this wave's
  float output[kQuarterFields][4];

  DEVICE_FUNCTION void clear() {
    unit = kMostWeight * 0x1p24f;
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) limit[c] = -3e38f, sum[c] = zero[c] = 0;
    DEVICE_UNROLL
    for (int f = 0; f < kQuarterFields; ++f) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) output[f][i] = 0;
  }
};

// A lane's 8 values of a token, for the quarter of the dimensions that is the wave's: two runs of
// four.
template <int kValueBits, bool kAligned>
class QuarterValues {
 public:
  QuarterValues() = default;
  // `even`: the codes of token 2 * member of the tile, `odd`: of the next.
  DEVICE_FUNCTION QuarterValues(uint32_t even, uint32_t odd, int quarter) {
    const int group = device::lane() / 4;
    const auto own = static_cast<uint32_t>(32 * quarter + 4 * group);
    quarter_ = quarter;
    if constexpr (kValueBits != 4) {
      bits_ = ValueWords<kValueBits, kQuarter, false>(
          even + static_cast<uint32_t>(8 * kValueBits * quarter),
          odd + static_cast<uint32_t>(8 * kValueBits * quarter), group);
      return;
    }
    const uint32_t even_off = kAligned ? 0 : even & 2, odd_off = kAligned ? 0 : odd & 2;
    even_ = even - even_off + own, odd_ = odd - odd_off + own;
    other_even_ = other_odd_ = 0;
    first_ = kLowHalves, second_ = kHighHalves;
    if (even_off != odd_off) {  // a run can lie in a word for one token, across words for the other
      other_even_ = 2 * even_off, other_odd_ = 2 * odd_off;
      first_ += even_off * 0x11 + odd_off * 0x1100, second_ -= even_off * 0x11 + odd_off * 0x1100;
      two_words_ = 1;
    } else if (even_off != 0) {
      // The words are two bytes early: a lane's first run is the one before. The very first has no
      // codes; there it is the last of all.
      early_ = 1;
      two_words_ = quarter == 0;
      if (own == 0) {
        even_ += kHeadsDim / 2, odd_ += kHeadsDim / 2;
        other_even_ = other_odd_ = static_cast<uint32_t>(-(kHeadsDim / 2));
      }
    }
  }

  // Whether load() has to be told that runs lie in words of their own.
  DEVICE_FUNCTION bool two_words() const { return kValueBits == 4 && !kAligned && two_words_; }
  // fields[0 ... 3]: the first run, fields[4 ... 7] the second; of two tokens each.
  template <bool kTwoWords>
  DEVICE_FUNCTION void load(SharedAddress tile, uint32_t (&fields)[20]) const {
    using device::load_shared4;
    using device::permute_bytes;
    if constexpr (kValueBits != 4) {
      bits_.load(tile, fields);
    } else {
      const uint32_t x = load_shared4(tile + even_), y = load_shared4(tile + odd_);
      if constexpr (kAligned) {
        nibbles(permute_bytes(x, y, kLowHalves), fields);
        nibbles(permute_bytes(x, y, kHighHalves), fields + 4);
      } else {
        uint32_t other_x = x, other_y = y;
        if (kTwoWords && two_words_) {
          other_x = load_shared4(tile + (even_ + other_even_));
          other_y = load_shared4(tile + (odd_ + other_odd_));
        }
        nibbles(permute_bytes(x, y, first_), fields);
        nibbles(permute_bytes(other_x, other_y, second_), fields + 4);
      }
    }
  }

  // The first dimension of a run of the lanes of a group.
  DEVICE_FUNCTION int dim(int group, int run) const {
    return (kQuarter * quarter_ + 8 * group + 4 * run - 4 * early_) & (kHeadsDim - 1);
  }

 private:
  int quarter_ = 0, early_ = 0, two_words_ = 0;
  uint32_t even_ = 0, odd_ = 0, other_even_ = 0, other_odd_ = 0, first_ = 0, second_ = 0;
  ValueWords<kValueBits, kQuarter, false> bits_;
};

// The centroids in fixed point, as two bytes each of 8 codes; `power` is what they were multiplied
// by, NaN where they are not finite.
struct ByteTable {
  uint32_t high[2], low[2];
  float power;

  DEVICE_FUNCTION void fill(const Codebook& book) {
    float c[8], largest = 0;
    DEVICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      c[i] = book.data[i * book.stride];
      largest = device::max(largest, device::abs(c[i]));
    }
    power = largest > 0 ? device::divide(32512, device::max(largest, 1e-30f)) : 1;
    high[0] = high[1] = low[0] = low[1] = 0;
    bool finite = true;
    DEVICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      finite = finite && device::abs(c[i]) < device::infinity();
      const float x = device::max(-32512.0f, device::min(32512.0f, c[i] * power));
      const int v = static_cast<int>(device::floor(x + 0.5f));
      const auto l = static_cast<int8_t>(v);
      low[i / 4] |= (static_cast<uint32_t>(l) & 255) << (8 * (i % 4));
      high[i / 4] |= (static_cast<uint32_t>((v - l) >> 8) & 255) << (8 * (i % 4));
    }
    if (!finite) power = device::nan();
  }
};

template <int kKeyBits, int kValueBits, bool kMany>
class HeadsMath {
  static constexpr int kColumns = kMany ? kManyHeads : kFewHeads;
  static constexpr int kWeightBytes = team_weight_bytes(kKeyBits, kMany) / kTeamTiles;
  static_assert(kKeyBits == 3 || kKeyBits == 8);

 public:
  // `own`: which of the team's waves this is. `team`: the team's bytes.
  DEVICE_FUNCTION void place(const StreamParams& p, int kv_head, int own, uint8_t* team) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    own_ = own;
    weights_ = team + device::lane() * 16;
    notes_ = reinterpret_cast<TeamNotes*>(team + team_weight_bytes(kKeyBits, kMany));
    if (device::lane() == 0)
      notes_->head_at[own] = static_cast<uint32_t>(kv_head * p.tile.head_stride);
    if constexpr (kKeyBits != 8) {
      table_.fill(p.centroids);
      // Dot products come in units of 2^8, which the gains undo (decode_queries.h).
      constant_ = p.norm_correction ? 1e-16f * table_.power * table_.power
                                    : device::divide(1, table_.power);
    } else {
      constant_ = p.fp8_factor;
    }
  }

  // `queries`: of the team's heads, in shared memory. A barrier is to follow.
  DEVICE_FUNCTION void begin(const StreamParams& p, int tile, SharedAddress queries) {
    const int lane = device::lane();
    queries_ = queries + static_cast<uint32_t>(lane * (kKeyBits == 8 && !kMany ? 8 : 16));
    if (own_ == 0 && lane < 16)
      notes_->gain[lane] = lane < kColumns ? p.gains[int64_t{tile} * kColumns + lane] : 0.0f;
  }

  // The weights of the wave's own tile, `live` of whose tokens are.
  DEVICE_FUNCTION void weigh(const StreamParams& p, SharedAddress tile, int live,
                             HeadsState& state) {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const bool low_group = group < 4;
    const Places at = places(p);
    float s[2][2], t[2];  // [tokens 0-7, 8-15][2 * member and the next]; the second head's
    if constexpr (kKeyBits == 8)
      half_scores(p, tile, at, s, t);
    else
      byte_scores(p, tile, at, s, t);
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
    const Values values = places(p).values(p, own_);
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
    return places(p).values(p, own_).dim(group, run);
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

  // Where a lane's bytes lie in a tile.
  struct Places {
    uint32_t key, codes, shift;  // of token `group`
    uint32_t pair;               // of token 2 * member
    DEVICE_FUNCTION Values values(const StreamParams& p, int own) const {
      const uint32_t even = pair + static_cast<uint32_t>(p.format.value_at);
      return {even, even + static_cast<uint32_t>(p.tile.token_stride), own};
    }
  };
  DEVICE_FUNCTION Places places(const StreamParams& p) const {
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const uint32_t head = device::load_shared4(device::shared_address(notes_->head_at + own_));
    const auto stride = static_cast<uint32_t>(p.tile.token_stride);
    Places at;
    at.key = head + static_cast<uint32_t>(group) * stride;
    at.codes = at.key + static_cast<uint32_t>(member * (kKeyBits == 8 ? 4 : 24));
    at.shift = (at.codes & 2) * 8, at.codes &= ~uint32_t{3};
    at.pair = head + static_cast<uint32_t>(2 * member) * stride;
    return at;
  }

  // The second head's dot products of this lane: those of tokens 0-7 in groups 0-3.
  DEVICE_FUNCTION void half_scores(const StreamParams& p, SharedAddress tile, const Places& at,
                                   float (&s)[2][2], float (&t)[2]) const {
    const SharedAddress codes = tile + at.codes;
    const auto eight = static_cast<uint32_t>(8 * p.tile.token_stride);
    float d[2][4] = {};
    uint32_t nans[2] = {};
    const auto multiply = [&](bool e4m3fn, bool nan_bytes) {
      DEVICE_UNROLL
      for (int k = 0; k < kHalfSteps; ++k) {
        uint32_t a[4] = {};
        if constexpr (kMany) {
          const device::Words4 q = device::load_shared16(queries_ + static_cast<uint32_t>(k * 512));
          a[0] = q.x[0], a[1] = q.x[1], a[2] = q.x[2], a[3] = q.x[3];
        } else {
          const device::Words2 q = device::load_shared8(queries_ + static_cast<uint32_t>(k * 256));
          a[0] = q.x[0], a[2] = q.x[1];
        }
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const uint32_t w =
              device::load_shared4(codes + static_cast<uint32_t>(e) * eight + 16 * k);
          const uint32_t b[2] = {fp8_pair(e4m3fn, w, 0), fp8_pair(e4m3fn, w, 1)};
          device::multiply_16x8x16<device::f16>(d[e], a, b);
          if (nan_bytes) nans[e] |= nan_bytes_e4m3fnuz(w) & 0x80808080u;
        }
      }
    };
    if (p.format.fp8 == TK_E4M3FN)
      multiply(true, false);
    else
      multiply(false, p.format.fp8 == TK_E4M3FNUZ);
    const bool low_group = device::lane() / 4 < 4;
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      s[0][j] = d[0][j] * constant_, s[1][j] = d[1][j] * constant_;
      t[j] = (low_group ? d[0][2 + j] : d[1][2 + j]) * constant_;
    }
    if (device::any((nans[0] | nans[1]) != 0)) {  // fp8_pair() made numbers of e4m3fnuz's NaNs
      float factor[2];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        DEVICE_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) nans[e] |= device::shuffle_xor(nans[e], mask);
        factor[e] = nans[e] ? device::nan() : 1.0f;
      }
      of_tokens(factor, s, t);
    }
  }

  DEVICE_FUNCTION void byte_scores(const StreamParams& p, SharedAddress tile, const Places& at,
                                   float (&s)[2][2], float (&t)[2]) const {
    const int group = device::lane() / 4;
    const SharedAddress codes = tile + at.codes;
    const auto eight = static_cast<uint32_t>(8 * p.tile.token_stride);
    // Of heads 0-7: high and middle bytes of the queries with the keys' high bytes, with their low
    // ones. Low bytes with high ones: few heads, of even and of odd steps, in the rows where they
    // meet; many, in rows 8-15 of `more`, whose others are the last heads'.
    int32_t high[2][4] = {}, low[2][4] = {};
    int32_t more[2][4] = {}, more_low[2][4] = {}, last[2][4] = {};
    int32_t squares[2][3] = {};  // of the lane's part of a key: high, mixed, low
    DEVICE_UNROLL
    for (int u = 0; u < 2; ++u) {
      uint32_t w[2][3];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const SharedAddress from = codes + static_cast<uint32_t>(e) * eight + 12 * u;
        uint32_t x = device::load_shared4(from);
        DEVICE_UNROLL
        for (int i = 0; i < 3; ++i) {  // the last reaches into the norm
          const uint32_t next = device::load_shared4(from + 4 * i + 4);
          w[e][i] = device::funnel_shift_right(x, next, at.shift);
          x = next;
        }
      }
      const SharedAddress queries = queries_ + static_cast<uint32_t>(u * (kHeadsPart / 2));
      const SharedAddress second =
          queries_ + kHeadsPart + static_cast<uint32_t>(u * (kHeadsPart / (kMany ? 2 : 4)));
      uint32_t r[4] = {};
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        uint32_t q[4], third[4] = {};
        load_rows(queries + j * 512, q);
        if (kMany || j % 2 == 0) load_rows(second + (kMany ? j : j / 2) * 512, r);
        if constexpr (kMany) load_rows(queries + 2 * kHeadsPart + j * 512, third);
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          uint32_t x = (w[e][0] & code_mask(j, 0)) | (w[e][1] & code_mask(j, 1)) |
                       (w[e][2] & code_mask(j, 2));
          if (j > 0) x = device::funnel_shift_right(x, x, static_cast<uint32_t>(32 - j));
          const uint32_t y = x >> 16;
          const uint32_t kh[2] = {device::look_up_bytes(table_.high[0], table_.high[1], x),
                                  device::look_up_bytes(table_.high[0], table_.high[1], y)};
          const uint32_t kl[2] = {device::look_up_bytes(table_.low[0], table_.low[1], x),
                                  device::look_up_bytes(table_.low[0], table_.low[1], y)};
          device::multiply_16x8x32(high[e], q, kh);
          device::multiply_16x8x32(low[e], q, kl);
          if constexpr (kMany) {
            device::multiply_16x8x32(more[e], r, kh);
            device::multiply_16x8x32(more_low[e], r, kl);
            device::multiply_16x8x32(last[e], third, kh);
          } else {
            device::multiply_16x8x32(j % 2 == 0 ? more[e] : last[e], r, kh);
          }
          DEVICE_UNROLL
          for (int i = 0; i < 2; ++i) {
            squares[e][0] = device::dot_bytes(kh[i], kh[i], squares[e][0]);
            squares[e][1] = device::dot_bytes(kh[i], kl[i], squares[e][1]);
            squares[e][2] = device::dot_bytes(kl[i], kl[i], squares[e][2]);
          }
        }
      }
    }
    // Dot products in units of 2^8.
    const auto sum = [](int hh, int hl, int ll) {
      return device::fma(65536.0f, static_cast<float>(hh), static_cast<float>(hl * 256 + ll));
    };
    float factor[2];  // of tokens group and group + 8
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      factor[e] = constant_;
      if (p.norm_correction) {
        float square = sum(squares[e][0], 2 * squares[e][1], squares[e][2]);
        DEVICE_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) square += device::shuffle_xor(square, mask);
        factor[e] = device::rsqrt_fast(square + constant_);
      }
      factor[e] *= load_half(tile + at.key + static_cast<uint32_t>(e) * eight +
                             static_cast<uint32_t>(p.format.norm_at));
      DEVICE_UNROLL
      for (int j = 0; j < 2; ++j)
        s[e][j] = sum(high[e][j], high[e][2 + j] + low[e][j],
                      low[e][2 + j] + more[e][(kMany ? 2 : 0) + j] + (kMany ? 0 : last[e][2 + j]));
    }
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      t[j] = 0;
      if constexpr (kMany) {
        // Groups 0-3 have what high bytes make of all tokens, groups 4-7 what middle bytes do.
        const bool low_group = group < 4;
        const int of_high = device::shuffle_xor(low_group ? more[1][j] : more[0][j], 16);
        const int of_low = device::shuffle_xor(low_group ? more_low[1][j] : more_low[0][j], 16);
        if (low_group)
          t[j] = sum(more[0][j], of_high + more_low[0][j], last[0][j] + of_low);
        else
          t[j] = sum(of_high, more[1][j] + of_low, last[1][j] + more_low[1][j]);
      }
    }
    of_tokens(factor, s, t);
  }
  DEVICE_FUNCTION static void load_rows(SharedAddress from, uint32_t (&a)[4]) {
    const device::Words4 x = device::load_shared16(from);
    a[0] = x.x[0], a[1] = x.x[1], a[2] = x.x[2], a[3] = x.x[3];
  }

  // Multiplies scores by factors of their tokens; factor[e]: of token group + 8 e.
  DEVICE_FUNCTION void of_tokens(const float (&factor)[2], float (&s)[2][2], float (&t)[2]) const {
    const int lane = device::lane(), member = lane % 4;
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int from = 4 * (2 * member + j) + member;
      const float f0 = device::shuffle(factor[0], from), f8 = device::shuffle(factor[1], from);
      s[0][j] *= f0, s[1][j] *= f8;
      t[j] *= lane / 4 < 4 ? f0 : f8;
    }
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
  ByteTable table_;
  float constant_;
  SharedAddress queries_;
};

}  // namespace tq
