// SPDX-License-Identifier: Apache-2.0
// Codes of a tile of 16 tokens as fragments of matrix instructions (m16n8k16, lane = 4 * group +
// member), straight from the cache's bytes in shared memory.
//
// Scores: keys are A, row = token, k = dimension. The order of k is free if the queries (B) agree,
// so a lane takes dimensions whose codes lie together: KeyOrder. A pair of centroid codes is looked
// up as four halves, the centroids rounded to f16 and what the rounding left: exact to 2^-22.
//
// Values: A is the transposed tile, row = dimension, k = token. A code masked in place at bit b is
// an f16 denormal of code * 2^(b - 24): matrix instructions take denormals exactly, so codes need
// no conversion, and the power of two is undone once at the end.
#pragma once

#include "device/nvidia.h"
#include "tq/slot_codes.h"

namespace tq {

// Where a lane is in a fragment. (Divisions of an int cost four instructions.)
DEVICE_FUNCTION int lane_group() { return device::lane() >> 2; }
DEVICE_FUNCTION int lane_member() { return device::lane() & 3; }

inline constexpr int kSteps16 = 16;  // dimensions of a matrix instruction's k

// Where a dimension of keys and queries lies: member of the lane, pair within it, half of the pair.
struct KeyPlace {
  int member, pair, half;
};

inline constexpr int wave_dim(int head_dim) { return head_dim == 256 ? 128 : head_dim; }

// Of up to 128 dimensions.
DEVICE_FUNCTION KeyPlace wave_key_place(int key_bits, int head_dim, int d) {
  if (key_bits == 3 || (key_bits == 4 && head_dim % 32 != 0)) {  // a member's codes are contiguous
    const int own = head_dim / 4, r = d % own;
    return {d / own, r / 2, r % 2};
  }
  if (key_bits == 4) {  // words of 8 codes go round the members: no bank conflicts
    const int word = d / 8, r = d % 8;
    return {word % 4, word / 4 * 4 + r / 2, r % 2};
  }
  const int word = d / 4, r = d % 4;
  return {word % 4, word / 4 * 2 + r / 2, r % 2};
}
DEVICE_FUNCTION KeyPlace key_place(int key_bits, int head_dim, int d) {
  KeyPlace place = wave_key_place(key_bits, wave_dim(head_dim), head_dim == 256 ? d % 128 : d);
  if (head_dim == 256) place.pair += d / 128 * 16;  // two halves, each for a wave of its own
  return place;
}

using device::SharedAddress;

DEVICE_FUNCTION float load_half(SharedAddress a) {
  return device::low_half<device::f16>(device::load_shared2(a));
}

// The word at an address that is even only.
DEVICE_FUNCTION uint32_t load_split_word(SharedAddress a) {
  const SharedAddress down = a & ~SharedAddress{3};
  return device::funnel_shift_right(device::load_shared4(down), device::load_shared4(down + 4),
                                    static_cast<uint32_t>(a & 2) * 8);
}

// kBits bits from bit `bit` on, wherever that is. Reads no word that holds none of them: it may be
// one that a copy is filling.
template <int kBits, int kWords>
DEVICE_FUNCTION void load_bits(SharedAddress from, int bit, uint32_t (&w)[kWords]) {
  const uint32_t at = static_cast<uint32_t>(from & 3) * 8 + static_cast<uint32_t>(bit);
  const SharedAddress down = (from & ~SharedAddress{3}) + at / 32 * 4;
  const uint32_t last = (at % 32 + kBits - 1) / 32 * 4;
  uint32_t low = device::load_shared4(down);
  DEVICE_UNROLL
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t high = device::load_shared4(down + device::min(4 * i + 4, last));
    w[i] = device::funnel_shift_right(low, high, at % 32);
    low = high;
  }
}

// A member's key words of a token. Where they lie in a tile is worked out once.
template <int kKeyBits, int kDim>
class KeyWords {
 public:
  static constexpr int kWords = (kKeyBits * kDim / 4 + 31) / 32;

  KeyWords() = default;
  // `codes`: of the token in its tile, whose address is a multiple of 16.
  DEVICE_FUNCTION KeyWords(uint32_t codes, int member) {
    at_ = codes;
    if (kWhole) at_ += static_cast<uint32_t>(member * (kKeyBits == 3 ? 4 * kWords : 4));
    if (kWhole) {
      shift_ = device::keep_whole((at_ & 2) * 8);
      at_ = device::keep_whole(at_ & ~uint32_t{3});
    }
  }

  DEVICE_FUNCTION void load(SharedAddress tile, uint32_t (&w)[kWords]) const {
    if constexpr (!kWhole) {
      load_bits<kKeyBits * kDim / 4>(tile + at_, kKeyBits * kDim / 4 * (lane_member()), w);
    } else if constexpr (kKeyBits == 3) {
      uint32_t low = device::load_shared4(tile + at_);
      DEVICE_UNROLL
      for (int i = 0; i < kWords; ++i) {  // the last reaches into the norm
        const uint32_t high = device::load_shared4(tile + at_ + 4 * i + 4);
        w[i] = device::funnel_shift_right(low, high, shift_);
        low = high;
      }
    } else {  // words of 8 codes go round the members
      DEVICE_UNROLL
      for (int i = 0; i < kWords; ++i)
        w[i] = device::funnel_shift_right(device::load_shared4(tile + at_ + 16 * i),
                                          device::load_shared4(tile + at_ + 16 * i + 4), shift_);
    }
  }
  // The four codes of fp8 keys that step k takes.
  DEVICE_FUNCTION uint32_t load_fp8(SharedAddress tile, int k) const {
    return device::load_shared4(tile + at_ + static_cast<uint32_t>(16 * k));
  }

 private:
  static constexpr bool kWhole = kKeyBits * kDim % 128 == 0;
  uint32_t at_, shift_;
};

// The table of pairs: entry e (the two codes' bits) of kEntryBytes, a copy for each of 16 lanes, so
// that lookups of half a wave never meet in a bank. A pair is two words: the two centroids as f16,
// and what rounding them left.
inline constexpr int kPairLanes = 16, kPairBytes = 8, kEntryBytes = kPairLanes * kPairBytes;
inline constexpr int pair_table_bytes(int key_bits) {
  return key_bits == 8 ? 0 : kEntryBytes << (2 * key_bits);
}
// A table of 3-bit codes lies at a multiple of its size, so that an entry is addressed by one OR.
inline constexpr int pair_table_alignment(int key_bits) {
  return key_bits == 3 ? pair_table_bytes(3) : 16;
}

// The power of two that all centroids carry in the table, from the largest. Into [2^7, 2^8): what
// rounding leaves of the smallest is then no f16 denormal.
DEVICE_FUNCTION float centroid_power(float largest) {
  int exponent = static_cast<int>(device::bit_cast<uint32_t>(largest) >> 23 & 255);
  if (exponent == 0 || exponent == 255) exponent = 134;
  exponent = device::max(exponent, 8);
  return device::bit_cast<float>(static_cast<uint32_t>(device::min(261 - exponent, 254)) << 23);
}
// A pair in the table.
DEVICE_FUNCTION device::Words2 split_pair(float first, float second) {
  device::Words2 pair;
  pair.x[0] = device::pack_halves<device::f16>(first, second);
  pair.x[1] = device::pack_halves<device::f16>(first - device::low_half<device::f16>(pair.x[0]),
                                               second - device::high_half<device::f16>(pair.x[0]));
  return pair;
}

// Pair p of a member.
template <int kKeyBits, int kWords>
DEVICE_FUNCTION device::Words2 look_up_pair(SharedAddress lane_table, const uint32_t (&w)[kWords],
                                            int p) {
  constexpr int kBits = 2 * kKeyBits, kAt = 7;  // kEntryBytes = 1 << kAt
  const int bit = kBits * p, word = bit / 32, b = bit % 32;
  if constexpr (kKeyBits == 4) {  // a byte: two instructions make the address
    const auto only = static_cast<uint32_t>(0x4440 + b / 8);
    return device::load_shared8(lane_table + (device::permute_bytes(w[word], 0, only) << kAt));
  } else {
    static_assert(pair_table_alignment(kKeyBits) == pair_table_bytes(kKeyBits));
    constexpr uint32_t kMask = ((1u << kBits) - 1) << kAt;
    uint32_t x;
    if (b + kBits > 32)
      x = device::funnel_shift_right(w[word], w[word + 1 < kWords ? word + 1 : word],
                                     static_cast<uint32_t>(b - kAt));
    else
      x = b >= kAt ? w[word] >> (b - kAt) : w[word] << (kAt - b);
    return device::load_shared8(lane_table | (x & kMask));
  }
}

// fp8 bytes 0 and 1 (pair 0), or 2 and 3, of a word as f16. e4m3fn comes with its NaNs. Of the
// others the exponent and mantissa are moved to where f16 has them, which is the value times
// 2^(bias - 15), exactly, denormals included; a NaN byte becomes a number.
DEVICE_FUNCTION uint32_t fp8_pair(bool e4m3fn, uint32_t word, int pair) {
  if (e4m3fn) return device::e4m3fn_to_f16x2(pair ? word >> 16 : word);
  const uint32_t x = device::permute_bytes(word, 0, pair ? 0x3424 : 0x1404);
  return (x & 0x80008000u) | ((x >> 1) & 0x3f803f80u);
}
inline float fp8_factor(tk_dtype flavour) {  // what that is multiplied by
  return flavour == TK_E4M3FNUZ ? 128.0f : 1.0f;
}
// Not zero in the top bit of a byte where some byte of the word is e4m3fnuz's NaN.
DEVICE_FUNCTION uint32_t nan_bytes_e4m3fnuz(uint32_t word) {
  const uint32_t x = word ^ 0x80808080u;
  return (x - 0x01010101u) & ~x;
}

// A lane has kDim / 8 values of a token as fields; fields 2m and 2m + 1 are rows group and group +
// 8 of matrix m. A field of a token pair is a word, the even token in the lower half.
template <int kValueBits>
DEVICE_FUNCTION constexpr int field_bit(int field) {  // b of code * 2^(b - 24)
  if constexpr (kValueBits == 4) return field % 2 * 4;
  constexpr int kBits[] = {0, 3, 6, 0, 3};
  return kBits[field % 5];  // field 15 is at 0 too
}
template <int kValueBits, int kDim>
DEVICE_FUNCTION int field_dim(int group, int field) {
  if constexpr (kDim == 128 && kValueBits == 4) return 8 * (group + field / 8 * 8) + field % 8;
  return kDim / 8 * group + field;
}

DEVICE_FUNCTION void nibbles(uint32_t x, uint32_t* fields) {  // of two tokens' halfwords
  fields[0] = x & 0x000f000fu;
  fields[1] = x & 0x00f000f0u;
  fields[2] = (x >> 8) & 0x000f000fu;
  fields[3] = (x >> 8) & 0x00f000f0u;
}
DEVICE_FUNCTION void fives(uint32_t x, uint32_t* fields) {  // five 3-bit codes
  fields[0] = x & 0x00070007u;
  fields[1] = x & 0x00380038u;
  fields[2] = x & 0x01c001c0u;
  fields[3] = (x >> 9) & 0x00070007u;
  fields[4] = (x >> 9) & 0x00380038u;
}

inline constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;

DEVICE_FUNCTION void load_48_bits(SharedAddress word, uint32_t shift, uint32_t (&w)[2]) {
  const uint32_t x0 = device::load_shared4(word), x1 = device::load_shared4(word + 4);
  w[0] = device::funnel_shift_right(x0, x1, shift);
  w[1] = x1 >> shift;
}
DEVICE_FUNCTION void load_48_bits(SharedAddress a, uint32_t (&w)[2]) {
  load_48_bits(a & ~SharedAddress{3}, static_cast<uint32_t>(a & 2) * 8, w);
}
// Sixteen 3-bit codes of two tokens.
DEVICE_FUNCTION void fifteen_and_one(const uint32_t (&a)[2], const uint32_t (&b)[2],
                                     uint32_t* fields) {
  fives(device::permute_bytes(a[0], b[0], kLowHalves), fields);
  DEVICE_UNROLL
  for (uint32_t i = 1; i < 3; ++i)
    fives(device::permute_bytes(device::funnel_shift_right(a[0], a[1], 15 * i),
                                device::funnel_shift_right(b[0], b[1], 15 * i), kLowHalves),
          fields + 5 * i);
  fields[15] = device::permute_bytes(a[1] >> 13, b[1] >> 13, kLowHalves) & 0x00070007u;
}

// A lane's fields of two tokens. For 4-bit codes of 128 dimensions a lane has the words group and
// group + 8 (kAligned: they are words in memory, too; otherwise an address may be off by two
// bytes); in other cases its codes are contiguous.
template <int kValueBits, int kDim, bool kAligned>
class ValueWords {
 public:
  ValueWords() = default;
  // Where the codes of both tokens lie in a tile, whose address is a multiple of 16.
  DEVICE_FUNCTION ValueWords(uint32_t even, uint32_t odd, int group) {
    even_ = even, odd_ = odd;
    if constexpr (!kWhole) return;
    const uint32_t own = static_cast<uint32_t>(4 * group);
    const uint32_t even_off = kAligned ? 0 : even & 2, odd_off = kAligned ? 0 : odd & 2;
    even_ = even - even_off + own, odd_ = odd - odd_off + own;
    even_high_ = even_ + 2 * even_off, odd_high_ = odd_ + 2 * odd_off;
    low_ = kLowHalves + even_off * 0x11 + odd_off * 0x1100;
    high_ = kHighHalves - even_off * 0x11 - odd_off * 0x1100;
  }

  DEVICE_FUNCTION void load(SharedAddress tile, uint32_t (&fields)[20]) const {
    using device::load_shared4;
    using device::permute_bytes;
    if constexpr (kWhole) {
      // The lower halves lie in the words at even_ and odd_ or are the upper ones of those; then
      // the upper halves are the lower ones of the words behind.
      DEVICE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t x = load_shared4(tile + even_ + 32 * i);
        const uint32_t y = load_shared4(tile + odd_ + 32 * i);
        const uint32_t x_high = kAligned ? x : load_shared4(tile + even_high_ + 32 * i);
        const uint32_t y_high = kAligned ? y : load_shared4(tile + odd_high_ + 32 * i);
        nibbles(permute_bytes(x, y, kAligned ? kLowHalves : low_), fields + 8 * i);
        nibbles(permute_bytes(x_high, y_high, kAligned ? kHighHalves : high_), fields + 8 * i + 4);
      }
    } else {
      constexpr int kBits = kValueBits * kDim / 8;  // at most 48
      const int group = lane_group();
      uint32_t a[2], b[2];
      if constexpr (kDim == 128) {
        const uint32_t at = static_cast<uint32_t>(6 * group);
        load_48_bits(tile + even_ + at, a);
        load_48_bits(tile + odd_ + at, b);
      } else {
        load_bits<kBits>(tile + even_, kBits * group, a);
        load_bits<kBits>(tile + odd_, kBits * group, b);
      }
      if constexpr (kValueBits == 4) {
        nibbles(permute_bytes(a[0], b[0], kLowHalves), fields);
        nibbles(permute_bytes(a[0], b[0], kHighHalves), fields + 4);
        if constexpr (kBits > 32) nibbles(permute_bytes(a[1], b[1], kLowHalves), fields + 8);
      } else {
        fives(permute_bytes(a[0], b[0], kLowHalves), fields);
        DEVICE_UNROLL
        for (int i = 1; 15 * i < kBits && i < 3; ++i)
          fives(permute_bytes(device::funnel_shift_right(a[0], a[1], static_cast<uint32_t>(15 * i)),
                              device::funnel_shift_right(b[0], b[1], static_cast<uint32_t>(15 * i)),
                              kLowHalves),
                fields + 5 * i);
        if constexpr (kBits > 45)
          fields[15] = permute_bytes(a[1] >> 13, b[1] >> 13, kLowHalves) & 0x00070007u;
      }
    }
  }

 private:
  static constexpr bool kWhole = kDim == 128 && kValueBits == 4;
  uint32_t even_, odd_, even_high_, odd_high_, low_, high_;
};

// The same for 128 dimensions where all tokens begin at the same place within a word of four bytes.
// 4-bit codes: words in memory serve in either case. If the codes begin in the middle of one, a
// lane's fields are those of four dimensions before, and the first lane's lower half, which would
// be no code, comes from the word that holds the last codes.
template <int kValueBits>
class EvenValueWords {
 public:
  EvenValueWords() = default;
  DEVICE_FUNCTION EvenValueWords(uint32_t codes, int group) {  // of a token
    const auto own = static_cast<uint32_t>(kValueBits == 4 ? 4 * group : 6 * group);
    if constexpr (kValueBits == 4) {
      off_ = codes & 2;
      at_ = codes - off_ + own;
      low_ = device::keep_whole(at_ + (group == 0 ? 32 * off_ : 0));
    } else {
      off_ = (codes + own) & 2;
      at_ = codes + own - off_;
    }
    at_ = device::keep_whole(at_);
  }
  // What field_dim() is too high by.
  DEVICE_FUNCTION int turned() const { return kValueBits == 4 ? 2 * static_cast<int>(off_) : 0; }

  // Of a token and the one `stride` bytes behind, `further` bytes behind the tile's first.
  DEVICE_FUNCTION void load(SharedAddress tile, uint32_t further, uint32_t stride,
                            uint32_t (&fields)[20]) const {
    using device::load_shared4;
    using device::permute_bytes;
    const SharedAddress at = tile + at_;
    if constexpr (kValueBits == 4) {
      const SharedAddress low = tile + low_;
      DEVICE_UNROLL
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t x = load_shared4(at + (further + 32 * i));
        const uint32_t y = load_shared4(at + (further + stride + 32 * i));
        const uint32_t x_low = i == 0 ? load_shared4(low + further) : x;
        const uint32_t y_low = i == 0 ? load_shared4(low + (further + stride)) : y;
        nibbles(permute_bytes(x_low, y_low, kLowHalves), fields + 8 * i);
        nibbles(permute_bytes(x, y, kHighHalves), fields + 8 * i + 4);
      }
    } else {
      uint32_t a[2], b[2];
      load_48_bits(at + further, 8 * off_, a);
      load_48_bits(at + (further + stride), 8 * off_, b);
      fifteen_and_one(a, b, fields);
    }
  }

 private:
  uint32_t at_, low_, off_;
};

}  // namespace tq
