// SPDX-License-Identifier: Apache-2.0
// The pass over the cache of a fast decode. A block goes through its share of stages
// (decode_schedule.h). A stage is one or more tiles of 16 tokens with all KV heads, each tile a
// contiguous run of bytes that the block copies to shared memory a few stages ahead; a wave takes
// one tile and one head tile (the query heads of a KV head, 8 at most) and keeps its softmax and
// its output in registers until the sequence ends or the share does.
#pragma once

#include "tq/decode_fragments.h"
#include "tq/decode_schedule.h"

namespace tq {

// Always 8 waves, also where there are fewer head tiles: copies step by a constant then. Registers
// bind: at 128 a thread two blocks fit a multiprocessor, and 128 dimensions fit those; of 256, two
// waves take half each and add up their scores. (A ninth wave that only copies would leave 96:
// registers are shared out in fours of waves.)
inline constexpr int kWaves = 8, kStreamThreads = kWaves * device::kWave;
inline constexpr int kMostRing = 4;
inline constexpr int kMostStageTiles = 16;
inline constexpr int kStreamBlocks = 2;  // of a multiprocessor

// How a tile comes from the cache: `runs` runs of contiguous bytes that are laid end to end in
// shared memory, where a token and a KV head then have their own strides.
struct TileLayout {
  int runs, run_bytes;
  int64_t run_stride;
  int bytes;                      // of all runs
  int64_t bytes_of_tile;          // between tiles of a page, in the cache
  int token_stride, head_stride;  // in shared memory
};

struct StreamParams {
  Schedule schedule;
  const uint8_t* cache;
  int64_t blocks, block_stride;  // of the cache
  TileLayout tile;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  bool norm_correction;
  const uint32_t* queries;  // decode_queries.h
  const float* gains;
  float fp8_factor;
  float* partial;  // [2 * parts + B][Hq][head_dim]: decode_schedule.h
  float* partial_lse;
  int query_heads, group;
  int tiles, tile_heads;             // of a KV head: tiles of at most tile_heads query heads
  int block_tiles;                   // of these, how many a block takes: all, or one (block_y)
  int head_tiles;                    // of a block: KV heads * block_tiles
  int halves;                        // of the dimensions: 2 for 256
  int wave_tiles;                    // tiles that a stage has beside each other, for waves
  int depth;                         // tiles of a wave in a stage: stage_tiles = wave_tiles * depth
  int ring;                          // stages in shared memory
  int merge_at, scores_at, ring_at;  // in shared memory, behind the pair table
};

// What all waves know of a stage.
struct StageInfo {
  int row, stage, stages;            // of the sequence; stage: which, stages: how many it has
  int tokens;                        // of the sequence
  int64_t offsets[kMostStageTiles];  // of its tiles in the cache; -1: no such tile, or no such page
};

// Copies a tile, 16 bytes a thread and step.
DEVICE_FUNCTION void copy_tile(const TileLayout& tile, SharedAddress to, const uint8_t* from) {
  constexpr int kStep = kStreamThreads * 16;
  int left = tile.bytes - device::thread() * 16;
  if (tile.runs == 1) {
    to += static_cast<uint32_t>(device::thread() * 16);
    from += device::thread() * 16;
    DEVICE_ROLLED
    for (; left > 0; left -= 4 * kStep, to += 4 * kStep, from += 4 * kStep) {
      device::copy_async16_at<0>(to, from);
      if (left > kStep) device::copy_async16_at<kStep>(to, from);
      if (left > 2 * kStep) device::copy_async16_at<2 * kStep>(to, from);
      if (left > 3 * kStep) device::copy_async16_at<3 * kStep>(to, from);
    }
  } else {
    DEVICE_ROLLED
    for (; left > 0; left -= kStep) {
      const int at = tile.bytes - left, run = at / tile.run_bytes;
      device::copy_async16_at<0>(to + static_cast<uint32_t>(at),
                                 from + run * tile.run_stride + (at - run * tile.run_bytes));
    }
  }
}

// Finds the stages of a block, one after another; the work of one wave.
class Planner {
 public:
  DEVICE_FUNCTION explicit Planner(const StreamParams& p) : p_(p) {}

  // The stage behind `last`, or the one that `info` names already.
  DEVICE_FUNCTION void plan(const StageInfo* last, StageInfo* info) {
    int row, stage, stages, tokens;
    bool entered = true;  // a sequence that the stage before is not of
    if (last) {
      row = last->row, stage = last->stage + 1, stages = last->stages, tokens = last->tokens;
      entered = stage == stages;
      if (entered) {
        do row += 1;
        while (stages_of(p_.schedule, row) == 0);
        stage = 0;
      }
    } else {
      row = info->row, stage = info->stage;
      device::sync_wave();  // it is written below
    }
    if (entered) {
      tokens = tokens_of(p_.schedule, row);
      stages = stages_of(p_.schedule, row);
    }
    const int lane = device::lane(), tile = stage * p_.schedule.stage_tiles;
    const int in_batch = tile % device::kWave;
    if (entered || in_batch == 0) next_batch(row, tokens, tile / device::kWave, entered);
    if (lane >= in_batch && lane < in_batch + p_.schedule.stage_tiles)
      info->offsets[lane - in_batch] = offset_;
    if (lane == 0)
      info->row = row, info->stage = stage, info->stages = stages, info->tokens = tokens;
    device::sync_wave();
  }

 private:
  // A lane has a tile of a batch. Page ids are loaded a batch ahead, but for the first two of a
  // sequence, and not looked at before their turn.
  DEVICE_FUNCTION void next_batch(int row, int tokens, int batch, bool entered) {
    const int tiles = tiles_of(p_.schedule, tokens);
    const int64_t id = entered ? load_id(row, tiles, batch) : next_id_;
    next_id_ = load_id(row, tiles, batch + 1);
    const int in_page = (batch * device::kWave + device::lane()) % p_.schedule.page_tiles;
    offset_ =
        id < 0 || id >= p_.blocks ? -1 : id * p_.block_stride + in_page * p_.tile.bytes_of_tile;
  }
  DEVICE_FUNCTION int64_t load_id(int row, int tiles, int batch) const {
    const int tile = batch * device::kWave + device::lane();
    if (tile >= tiles) return -1;
    return load_index(
        p_.table.ids.data, p_.table.ids.dtype,
        row * p_.table.ids.stride[0] + tile / p_.schedule.page_tiles * p_.table.ids.stride[1]);
  }

  const StreamParams& p_;
  int64_t offset_ = -1, next_id_ = -1;
};

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
  static constexpr int kMatrices = kDim / 16;
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
  DEVICE_FUNCTION void rescale(float limit0, float limit1, float new_unit) {
    float f0 = device::exp2_fast(limit[0] - limit0), f1 = device::exp2_fast(limit[1] - limit1);
    sum[0] *= f0, sum[1] *= f1, zero[0] *= f0, zero[1] *= f1;
    const float units = new_unit * inverse_of_power(unit);
    f0 *= units, f1 *= units;
    DEVICE_UNROLL
    for (int m = 0; m < kMatrices; ++m) {
      output[m][0] *= f0, output[m][1] *= f1;
      output[m][2] *= f0, output[m][3] *= f1;
    }
    limit[0] = limit0, limit[1] = limit1, unit = new_unit;
  }
  template <class F>
  DEVICE_FUNCTION void for_each(F f) {  // sums and outputs, in a fixed order
    f(0, sum[0]), f(1, sum[1]), f(2, zero[0]), f(3, zero[1]);
    DEVICE_UNROLL
    for (int m = 0; m < kMatrices; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) f(4 + 4 * m + i, output[m][i]);
  }
};

// What a lane hands over where waves share a head.
inline constexpr int merge_floats(int wave_dim) { return wave_dim / 4 + 7; }
// And where they share its dimensions.
inline constexpr int kHalfFloats = 6, kScoresBytes = 2 * kWaves * kHalfFloats * device::kWave * 4;

// The unit for scales of up to `scale`.
DEVICE_FUNCTION float unit_for(float scale) {
  const float most = device::min(device::max(scale, 0x1p-24f), 65536.0f);
  const uint32_t power = (device::bit_cast<uint32_t>(most) + 0x7fffffu) & 0x7f800000u;
  return kMostWeight * inverse_of_power(device::bit_cast<float>(power));
}

template <int kKeyBits, int kValueBits, int kDim, bool kPacked>
struct TileMath {
  static constexpr int kSteps = kDim / 16;
  static constexpr int kQueryRegisters = kPacked ? 2 : 4;
  using State = Attention<kDim>;

  uint32_t query[kSteps][kQueryRegisters];
  float gain[2];  // of the lane's columns

  int half;

  DEVICE_FUNCTION void load_queries(const StreamParams& p, int row, int head_tile) {
    const int lane = device::lane(), columns = kPacked ? 4 : 8;
    const int64_t tile = int64_t{row} * (p.query_heads / p.group * p.tiles) + head_tile;
    const uint32_t* from =
        p.queries + ((tile * p.halves + half) * kSteps * device::kWave + lane) * kQueryRegisters;
    DEVICE_UNROLL
    for (int s = 0; s < kSteps; ++s) DEVICE_UNROLL
    for (int r = 0; r < kQueryRegisters; ++r)
      query[s][r] = from[s * device::kWave * kQueryRegisters + r];
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) gain[c] = p.gains[tile * columns + (lane % 4 * 2 + c) % columns];
  }

  // Dot products of the tile's tokens with the queries, and for norm correction the squares of the
  // keys: s[0], s[1] of token `group`, s[2], s[3] of token group + 8.
  DEVICE_FUNCTION void dot_products(const StreamParams& p, SharedAddress slots,
                                    SharedAddress lane_table, float (&s)[4],
                                    float (&squares)[2]) const {
    constexpr int kWords = kKeyWords<kKeyBits, kDim>;
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const SharedAddress codes0 =
        slots + static_cast<uint32_t>(group * p.tile.token_stride + 16 * kKeyBits * half);
    const SharedAddress codes8 = codes0 + static_cast<uint32_t>(8 * p.tile.token_stride);
    uint32_t w0[kWords], w8[kWords];
    load_key_words<kKeyBits, kDim>(codes0, member, w0);
    load_key_words<kKeyBits, kDim>(codes8, member, w8);
    float d0[4] = {}, d8[4] = {};
    if constexpr (kKeyBits == 8) {
      const auto multiply = [&](bool e4m3fn) {
        DEVICE_UNROLL
        for (int k = 0; k < kSteps; ++k) {
          const uint32_t a[4] = {fp8_pair(e4m3fn, w0[k], 0), fp8_pair(e4m3fn, w8[k], 0),
                                 fp8_pair(e4m3fn, w0[k], 1), fp8_pair(e4m3fn, w8[k], 1)};
          const uint32_t b[2] = {query[k][0], query[k][1]};
          device::multiply_16x8x16<device::f16>(k % 2 ? d8 : d0, a, b);
          if constexpr (!kPacked) {
            const uint32_t rest[2] = {query[k][2], query[k][3]};
            device::multiply_16x8x16<device::f16>(k % 2 ? d0 : d8, a, rest);
          }
        }
      };
      if (p.format.fp8 == TK_E4M3FN)
        multiply(true);
      else
        multiply(false);
      DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) s[i] = d0[i] + d8[i];
      if (p.format.fp8 == TK_E4M3FNUZ) mark_nans(w0, w8, s);
    } else {
      // A token's pairs as they are loaded make a fragment: rows 0 ... 7 are the tokens' rounded
      // keys, rows 8 ... 15 what the rounding left of the same tokens. Against the tokens
      // themselves the diagonals are the squares of the keys. Each sum's instructions wait for each
      // other, so there are six of them, and a step's pairs are loaded while the step before is
      // multiplied.
      float n0[2][4] = {}, n8[2][4] = {};
      device::Words2 x0 = look_up_pair<kKeyBits>(lane_table, w0, 0);
      device::Words2 x8 = look_up_pair<kKeyBits>(lane_table, w8, 0);
      device::Words2 y0 = look_up_pair<kKeyBits>(lane_table, w0, 1);
      device::Words2 y8 = look_up_pair<kKeyBits>(lane_table, w8, 1);
      DEVICE_UNROLL
      for (int k = 0; k < kSteps; ++k) {
        const uint32_t a0[4] = {x0.x[0], x0.x[1], y0.x[0], y0.x[1]};
        const uint32_t a8[4] = {x8.x[0], x8.x[1], y8.x[0], y8.x[1]};
        const uint32_t own0[2] = {x0.x[0], x0.x[1]}, own8[2] = {x8.x[0], x8.x[1]};
        const uint32_t next0[2] = {y0.x[0], y0.x[1]}, next8[2] = {y8.x[0], y8.x[1]};
        if (k + 1 < kSteps) {
          x0 = look_up_pair<kKeyBits>(lane_table, w0, 2 * k + 2);
          x8 = look_up_pair<kKeyBits>(lane_table, w8, 2 * k + 2);
          y0 = look_up_pair<kKeyBits>(lane_table, w0, 2 * k + 3);
          y8 = look_up_pair<kKeyBits>(lane_table, w8, 2 * k + 3);
        }
        const uint32_t b[2] = {query[k][0], query[k][1]};
        device::multiply_16x8x16<device::f16>(d0, a0, b);
        device::multiply_16x8x16<device::f16>(d8, a8, b);
        device::multiply_16x8x8(n0[0], own0, own0[0]);
        device::multiply_16x8x8(n8[0], own8, own8[0]);
        device::multiply_16x8x8(n0[1], next0, next0[0]);
        device::multiply_16x8x8(n8[1], next8, next8[0]);
        if constexpr (!kPacked) {
          const uint32_t rest[2] = {query[k][2], query[k][3]};
          device::multiply_16x8x16<device::f16>(d0, a0, rest);
          device::multiply_16x8x16<device::f16>(d8, a8, rest);
        }
      }
      const int diagonal = group * 4 + group / 2;  // the lane that holds column `group`
      const auto square = [&](const float(&n)[2][4]) {
        const int i = group % 2;
        const float high = i ? n[0][1] + n[1][1] : n[0][0] + n[1][0];
        const float low = i ? n[0][3] + n[1][3] : n[0][2] + n[1][2];
        return device::shuffle(device::fma(2, low, high), diagonal);
      };
      squares[0] = square(n0), squares[1] = square(n8);
      s[0] = d0[0] + d0[2], s[1] = d0[1] + d0[3];
      s[2] = d8[0] + d8[2], s[3] = d8[1] + d8[3];
    }
    if constexpr (kPacked) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i)
      s[i] += device::shuffle_xor(s[i], 2);  // the part of the query in the other columns
  }

  // fp8_pair() makes numbers of e4m3fnuz's NaN bytes: their tokens' scores become NaN here.
  template <int kWords>
  static DEVICE_FUNCTION void mark_nans(const uint32_t (&w0)[kWords], const uint32_t (&w8)[kWords],
                                        float (&s)[4]) {
    uint32_t nan0 = 0, nan8 = 0;
    DEVICE_UNROLL
    for (int i = 0; i < kWords; ++i)
      nan0 |= nan_bytes_e4m3fnuz(w0[i]), nan8 |= nan_bytes_e4m3fnuz(w8[i]);
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

  // Takes a tile into the state: s and squares are its dot products, `tokens` of its 16 tokens are
  // live, `slots` is the first token's slot of the KV head. `key_constant`: what is added to the
  // squares for norm correction; without it, and for fp8 keys, a factor of all scores.
  DEVICE_FUNCTION void attend(const StreamParams& p, SharedAddress slots, int tokens, float (&s)[4],
                              const float (&squares)[2], float key_constant, State& state) const {
    const int group = device::lane() / 4;
    const SharedAddress slot0 = slots + static_cast<uint32_t>(group * p.tile.token_stride);
    const SharedAddress slot8 = slot0 + static_cast<uint32_t>(8 * p.tile.token_stride);
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
    if (tokens < kTileTokens) {  // masked, not weighed 0: 0 * NaN is NaN
      if (group >= tokens) s[0] = s[1] = -device::infinity(), scale0 = zero0 = 0;
      if (group + 8 >= tokens) s[2] = s[3] = -device::infinity(), scale8 = zero8 = 0;
    }

    const float most0 = device::max(s[0], s[2]), most1 = device::max(s[1], s[3]);
    const float scale = device::max(device::abs(scale0), device::abs(scale8));
    if (device::any(most0 > state.limit[0] || most1 > state.limit[1] ||
                    scale * state.unit > kMostWeight)) {
      // Over the tokens; the lanes of a group differ in heads, and have the same scales.
      float top0 = most0, top1 = most1, top_scale = scale;
      DEVICE_UNROLL
      for (int mask = 4; mask < device::kWave; mask *= 2) {
        top0 = device::max(top0, device::shuffle_xor(top0, mask));
        top1 = device::max(top1, device::shuffle_xor(top1, mask));
        top_scale = device::max(top_scale, device::shuffle_xor(top_scale, mask));
      }
      state.rescale(top0 > state.limit[0] ? top0 + kSlack : state.limit[0],
                    top1 > state.limit[1] ? top1 + kSlack : state.limit[1],
                    device::min(state.unit, unit_for(top_scale)));
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
    add_values(p, slots, p0 * scale0, p1 * scale0, p2 * scale8, p3 * scale8, state);
  }

  // Adds weights * codes. Weights as two halves, like the queries.
  DEVICE_FUNCTION void add_values(const StreamParams& p, SharedAddress slots, float w0, float w1,
                                  float w2, float w3, State& state) const {
    using device::f16;
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    const uint32_t high0 = device::pack_halves<f16>(w0, w1);
    const uint32_t high8 = device::pack_halves<f16>(w2, w3);
    const uint32_t low0 = device::pack_halves<f16>(w0 - device::low_half<f16>(high0),
                                                   w1 - device::high_half<f16>(high0));
    const uint32_t low8 = device::pack_halves<f16>(w2 - device::low_half<f16>(high8),
                                                   w3 - device::high_half<f16>(high8));
    uint32_t b[2], b_rest[2];
    if constexpr (kPacked) {
      b[0] = device::transpose_8x8(member < 2 ? high0 : low0);
      b[1] = device::transpose_8x8(member < 2 ? high8 : low8);
    } else {
      b[0] = device::transpose_8x8(high0), b[1] = device::transpose_8x8(high8);
      b_rest[0] = device::transpose_8x8(low0), b_rest[1] = device::transpose_8x8(low8);
    }
    const uint32_t stride = static_cast<uint32_t>(p.tile.token_stride);
    const SharedAddress codes =
        slots +
        (2 * member * stride + static_cast<uint32_t>(p.format.value_at + 16 * kValueBits * half));
    constexpr bool kWords = kValueBits == 4 && kDim == 128;  // loaded as such where they lie so
    const bool even_off = kWords && kKeyBits != 8 && (codes & 2) != 0;
    const bool odd_off = kWords && kKeyBits != 8 && ((codes + stride) & 2) != 0;
    uint32_t x0[20], x8[20];
    const auto load = [&](auto even, auto odd) {
      load_fields<kValueBits, kDim, even(), odd()>(codes, codes + stride, group, x0);
      load_fields<kValueBits, kDim, even(), odd()>(codes + 8 * stride, codes + 9 * stride, group,
                                                   x8);
    };
    constexpr std::integral_constant<int, 0> at_word;
    constexpr std::integral_constant<int, 1> off;
    if (!even_off && !odd_off)
      load(at_word, at_word);
    else if (even_off && odd_off)
      load(off, off);
    else if (even_off)
      load(off, at_word);
    else
      load(at_word, off);
    DEVICE_UNROLL
    for (int m = 0; m < State::kMatrices; ++m) {
      const uint32_t a[4] = {x0[2 * m], x0[2 * m + 1], x8[2 * m], x8[2 * m + 1]};
      device::multiply_16x8x16<f16>(state.output[m], a, b);
      if constexpr (!kPacked) device::multiply_16x8x16<f16>(state.output[m], a, b_rest);
    }
  }
};

// The pair table of a block; returns the power of two that all centroids carry in it.
template <int kKeyBits>
DEVICE_FUNCTION float fill_pair_table(const Codebook& book, uint8_t* table) {
  constexpr int kCodes = 1 << kKeyBits;
  float largest = 0;
  for (int i = 0; i < kCodes; ++i)
    largest = device::max(largest, device::abs(book.data[i * book.stride]));
  // Into [2^7, 2^8): what rounding leaves of the smallest is then no f16 denormal.
  int exponent = static_cast<int>(device::bit_cast<uint32_t>(largest) >> 23 & 255);
  if (exponent == 0 || exponent == 255) exponent = 134;
  exponent = device::max(exponent, 8);
  const float power =
      device::bit_cast<float>(static_cast<uint32_t>(device::min(261 - exponent, 254)) << 23);
  DEVICE_ROLLED
  for (int i = device::thread(); i < kCodes * kCodes * kPairLanes; i += kStreamThreads) {
    const int entry = i / kPairLanes;
    const float first = book.data[entry % kCodes * book.stride] * power;
    const float second = book.data[entry / kCodes * book.stride] * power;
    device::Words2 pair;
    pair.x[0] = device::pack_halves<device::f16>(first, second);
    pair.x[1] =
        device::pack_halves<device::f16>(first - device::low_half<device::f16>(pair.x[0]),
                                         second - device::high_half<device::f16>(pair.x[0]));
    *reinterpret_cast<device::Words2*>(table + i * kPairBytes) = pair;
  }
  return power;
}

template <int kKeyBits, int kValueBits, int kDim, bool kPacked>
class Stream {
  using Math = TileMath<kKeyBits, kValueBits, kDim, kPacked>;
  using State = Attention<kDim>;

 public:
  DEVICE_FUNCTION Stream(const StreamParams& p, uint8_t* shared)
      : p_(p),
        shared_(shared),
        wave_(device::wave()),
        unit_(wave_ % (p.head_tiles * p.halves)),
        wave_tile_(wave_ / (p.head_tiles * p.halves)),
        kv_head_(unit_ / p.halves / p.block_tiles),
        head_tile_(kv_head_ * p.tiles + unit_ / p.halves % p.block_tiles + device::block_y()) {
    math_.half = unit_ % p.halves;
  }

  DEVICE_FUNCTION void run(StageInfo* infos) {
    const Runs runs = runs_of(p_.schedule);
    const Cut cut = runs.total > 0 ? cut_of(p_.schedule, runs.total) : Cut{};
    const int part = device::block_x();
    if (part >= cut.parts) return;
    const int begin = first_stage(cut, part), stages = first_stage(cut, part + 1) - begin;
    if (wave_ == 0) {
      const Place place = find_stage(p_.schedule, runs, begin);
      if (device::lane() == 0) infos->row = place.row, infos->stage = place.stage;
      device::sync_wave();
    }
    const int stage_bytes = p_.schedule.stage_tiles * p_.tile.bytes;
    const SharedAddress ring = device::shared_address(shared_ + p_.ring_at);

    constexpr int kAlignment = pair_table_alignment(kKeyBits);
    uint8_t* const table =
        shared_ + (static_cast<uint32_t>(-device::shared_address(shared_)) & (kAlignment - 1));
    const SharedAddress lane_table =
        device::shared_address(table + device::lane() % kPairLanes * kPairBytes);
    const SharedAddress slots =
        ring + static_cast<uint32_t>(wave_tile_ * p_.tile.bytes + kv_head_ * p_.tile.head_stride);
    float key_constant = p_.fp8_factor;
    Planner planner(p_);

    // Turn i attends to stage i, starts the copies of stage i + ring - 1 and plans stage i + ring.
    // Stage i lies at i mod ring, what is known of it at i mod (ring + 1).
    Segment segment{-1, 0, 0, 0};
    int at = 0, info_at = 1;  // of stage -ring
    DEVICE_ROLLED
    for (int i = -p_.ring; i <= stages; ++i) {
      if (i == 0) {
        if constexpr (kKeyBits != 8) {
          const float power = fill_pair_table<kKeyBits>(p_.centroids, table);
          key_constant = p_.norm_correction ? 1e-16f * power * power : inverse_of_power(power);
        }
      }
      if (p_.ring == 4)
        device::copy_async_wait<2>();
      else if (p_.ring == 3)
        device::copy_async_wait<1>();
      else
        device::copy_async_wait<0>();
      device::sync_block();

      const int copied = i + p_.ring - 1, planned = i + p_.ring;
      const int plan_at = info_at == 0 ? p_.ring : info_at - 1;
      const int copy_at = plan_at == 0 ? p_.ring : plan_at - 1;
      if (copied >= 0 && copied < stages) {
        SharedAddress to =
            ring + static_cast<uint32_t>((at == 0 ? p_.ring - 1 : at - 1) * stage_bytes);
        DEVICE_ROLLED
        for (int t = 0; t < p_.schedule.stage_tiles;
             ++t, to += static_cast<uint32_t>(p_.tile.bytes)) {
          const int64_t offset = infos[copy_at].offsets[t];
          if (offset >= 0) copy_tile(p_.tile, to, p_.cache + offset);
        }
      }
      device::copy_async_commit();
      if (wave_ == 0 && planned < stages)
        planner.plan(planned == 0 ? nullptr : infos + copy_at, infos + plan_at);

      if (i >= 0) {
        const StageInfo* const info = infos + info_at;
        const int row = i < stages ? info->row : -1;
        if (row != segment.row) {
          if (segment.row >= 0) finish(segment, part);
          if (i == stages) break;
          segment = {row, info->stage, 0, info->stages};
          if (wave_tile_ < p_.wave_tiles) {
            state_.clear();
            math_.load_queries(p_, row, head_tile_);
          }
        }
        segment.last = info->stage;
        DEVICE_ROLLED
        for (int d = 0; d < p_.depth; ++d) {
          const int tile = wave_tile_ + d * p_.wave_tiles;
          const bool live = wave_tile_ < p_.wave_tiles && info->offsets[tile] >= 0;
          const SharedAddress here =
              slots + static_cast<uint32_t>(at * stage_bytes + d * p_.wave_tiles * p_.tile.bytes);
          float s[4] = {}, squares[2] = {};
          if (live) math_.dot_products(p_, here, lane_table, s, squares);
          if (kDim == 128 && p_.halves > 1) add_other_half(i * p_.depth + d, s, squares);
          if (live)
            math_.attend(p_, here,
                         tokens_from(p_.schedule, info->tokens,
                                     segment.last * p_.schedule.stage_tiles + tile),
                         s, squares, key_constant, state_);
        }
      }
      at = at + 1 == p_.ring ? 0 : at + 1;
      info_at = info_at == p_.ring ? 0 : info_at + 1;
    }
    device::copy_async_wait<0>();
  }

 private:
  // The waves of both halves of the dimensions get the sums of both. The buffer of one turn is read
  // before the barrier of the next, so two take turns.
  DEVICE_FUNCTION void add_other_half(int turn, float (&s)[4], float (&squares)[2]) {
    float* const mine = reinterpret_cast<float*>(shared_ + p_.scores_at) +
                        (turn % 2 * kWaves + wave_) * kHalfFloats * device::kWave + device::lane();
    const float* const other = mine + (math_.half ? -1 : 1) * kHalfFloats * device::kWave;
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) mine[i * device::kWave] = s[i];
    DEVICE_UNROLL
    for (int i = 0; i < 2; ++i) mine[(4 + i) * device::kWave] = squares[i];
    device::sync_block();
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) s[i] += other[i * device::kWave];
    DEVICE_UNROLL
    for (int i = 0; i < 2; ++i) squares[i] += other[(4 + i) * device::kWave];
  }

  // The stages of a sequence that this block has.
  struct Segment {
    int row, first, last, stages;  // stages: of the whole sequence
  };

  // Writes the result of a segment.
  DEVICE_FUNCTION void finish(const Segment& s, int part) {
    merge_tiles();
    if (wave_tile_ != 0) return;
    const int lane = device::lane(), group = lane / 4, member = lane % 4;
    DEVICE_UNROLL
    for (int mask = 4; mask < device::kWave; mask *= 2) DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      state_.sum[c] += device::shuffle_xor(state_.sum[c], mask);
      state_.zero[c] += device::shuffle_xor(state_.zero[c], mask);
    }
    if constexpr (kPacked) DEVICE_UNROLL
    for (int m = 0; m < State::kMatrices; ++m) DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) state_.output[m][i] += device::shuffle_xor(state_.output[m][i], 2);

    const bool whole = s.first == 0 && s.last + 1 == s.stages;
    const int64_t slot =
        whole ? int64_t{2} * p_.schedule.parts + s.row : int64_t{2} * part + (s.first == 0);
    const int in_group = head_tile_ % p_.tiles * p_.tile_heads;
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const int column = 2 * member + c;
      if (column >= p_.tile_heads || in_group + column >= p_.group) continue;
      const int head = kv_head_ * p_.group + in_group + column;
      const float sum = state_.sum[c];
      const bool none = sum == 0;  // a NaN sum is not 0 and makes the head NaN
      const float inverse = none ? 0 : device::divide(1, sum);
      const float zero = none ? 0 : state_.zero[c] * inverse;
      const float codes = none ? 0 : inverse * inverse_of_power(state_.unit);
      constexpr float kLn2 = 0.693147180559945309f;
      if (group == 0 && math_.half == 0)
        p_.partial_lse[slot * p_.query_heads + head] =
            none ? -device::infinity() : (state_.limit[c] + device::log2(sum)) * kLn2;
      float* const partial =
          p_.partial + (slot * p_.query_heads + head) * p_.format.head_dim + math_.half * kDim;
      DEVICE_UNROLL
      for (int f = 0; f < kDim / 8; ++f) {
        const float undo = static_cast<float>(1 << (24 - field_bit<kValueBits>(f)));
        partial[field_dim<kValueBits, kDim>(group, f)] =
            device::fma(state_.output[f / 2][f % 2 * 2 + c], codes * undo, zero);
      }
    }
  }

  // Where several waves share a head: into the wave of the first tile, one after another.
  DEVICE_FUNCTION void merge_tiles() {
    if (p_.wave_tiles == 1) return;
    float* const buffer = reinterpret_cast<float*>(shared_ + p_.merge_at) +
                          unit_ * merge_floats(kDim) * device::kWave + device::lane();
    DEVICE_ROLLED
    for (int t = 1; t < p_.wave_tiles; ++t) {
      device::sync_block();  // the buffer has been read
      if (wave_tile_ == t) {
        buffer[0] = state_.limit[0];
        buffer[device::kWave] = state_.limit[1];
        buffer[2 * device::kWave] = state_.unit;
        state_.for_each([&](int i, float& x) { buffer[(3 + i) * device::kWave] = x; });
      }
      device::sync_block();
      if (wave_tile_ == 0) {
        const float limit0 = buffer[0], limit1 = buffer[device::kWave];
        const float unit = buffer[2 * device::kWave];
        state_.rescale(device::max(state_.limit[0], limit0), device::max(state_.limit[1], limit1),
                       device::min(state_.unit, unit));
        const float f0 = device::exp2_fast(limit0 - state_.limit[0]);
        const float f1 = device::exp2_fast(limit1 - state_.limit[1]);
        const float units = state_.unit * inverse_of_power(unit);
        state_.for_each([&](int i, float& x) {
          const float f = i % 2 ? f1 : f0;
          x = device::fma(buffer[(3 + i) * device::kWave], i < 4 ? f : f * units, x);
        });
      }
    }
  }

  const StreamParams& p_;
  uint8_t* const shared_;
  const int wave_, unit_, wave_tile_, kv_head_, head_tile_;
  State state_;
  Math math_;
};

template <int kKeyBits, int kValueBits, int kDim, bool kPacked>
DEVICE_KERNEL_BLOCKS(kStreamThreads, kStreamBlocks)
decode_stream(StreamParams p) {
  DEVICE_SHARED(StageInfo, infos, kMostRing + 1);
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  Stream<kKeyBits, kValueBits, kDim, kPacked>(p, device::data(shared)).run(device::data(infos));
}

}  // namespace tq
