// SPDX-License-Identifier: Apache-2.0
// A lane's values of a fast decode of 256 dimensions (decode_heads.h), and what a wave keeps of a
// sequence.
#pragma once

#include "tq/decode_heads_queries.h"
#include "tq/decode_tile.h"

namespace tq {

inline constexpr int kTeamWaves = 4, kTeamTiles = 4, kQuarter = kHeadsDim / kTeamWaves;
inline constexpr int kQuarterFields = kQuarter / 8;  // a lane's dimensions of values

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

}  // namespace tq
