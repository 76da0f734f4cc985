// SPDX-License-Identifier: Apache-2.0
// Queries of a fast decode of 256 dimensions (decode_heads.h), whose rows are heads: as A operands,
// in the order in which a lane finds its keys.
//
// Centroid keys: the rotated query in fixed point, three signed bytes: high, middle, low. fp8 keys:
// an f16 each, which holds the query as it is, because nothing is rotated.
//
// A head tile has up to 8 heads, one for each row group; or up to 12, where rows group + 8 are the
// last four heads twice over, so that each of two row groups can take half of their tokens.
#pragma once

#include "tq/decode_fragments.h"

namespace tq {

inline constexpr int kHeadsDim = 256, kSomeHeads = 8, kManyHeads = 12;

// Of centroid keys, by parts. Each is 16 bytes a lane and step of 32 dimensions, the registers of
// an A operand: rows group, then group + 8, and both for the second half of the step.
//   first: high, middle bytes of heads 0-7
//   few heads, second: low bytes of heads 0-7, of an even step, then of the odd one behind it
//   many, second: high and middle bytes of heads 8-11 (rows 0-3, 4-7), low bytes of heads 0-7
//   many, third: low bytes of heads 8-11 twice; nothing
inline constexpr int kByteSteps = kHeadsDim / 32, kHalfSteps = kHeadsDim / 16;
inline constexpr int kHeadsPart = kByteSteps * 32 * 16;
inline constexpr int heads_query_bytes(int key_bits, bool many) {
  if (key_bits == 8) return kHalfSteps * 32 * (many ? 16 : 8);
  return many ? 3 * kHeadsPart : kHeadsPart + kHeadsPart / 2;
}

// 32 codes of 3 bits are three words. Codes j, j + 4, ... lie in different bits of the words, so
// that masked they fit one word; turned left by j bits each is a nibble of its own.
inline constexpr uint32_t code_mask(int j, int word) {
  uint32_t mask = 0;
  for (int c = j; c < 32; c += 4)
    for (int bit = 3 * c; bit < 3 * c + 3; ++bit)
      if (bit >= 32 * word && bit < 32 * word + 32) mask |= 1u << (bit - 32 * word);
  return mask;
}
// Where dimension d of a centroid key lies: member of the lane, step, byte of the step's two words.
struct BytePlace {
  int member, step, byte;
};
DEVICE_FUNCTION BytePlace byte_place(int d) {
  const int r = d % (kHeadsDim / 4), c = r % 32, j = c % 4;
  return {d / (kHeadsDim / 4), r / 32 * 4 + j, (3 * c + j) % 32 / 4};
}

// Dimension d of a head tile's column in fixed point; |v| < 127 << 16.
DEVICE_FUNCTION void put_query_bytes(uint8_t* tile, bool many, int column, int d, int v) {
  const auto low = static_cast<int8_t>(v);
  const int rest = (v - low) >> 8;
  const auto middle = static_cast<int8_t>(rest);
  const int high = (rest - middle) >> 8;
  const BytePlace p = byte_place(d);
  const auto put = [&](int part, int row, int value, bool paired = false) {
    const int step = paired ? p.step / 2 : p.step, at = row / 8 + (paired ? p.step % 2 : 0);
    tile[part * kHeadsPart + (step * 32 + 4 * (row % 8) + p.member) * 16 + p.byte / 4 * 8 + at * 4 +
         p.byte % 4] = static_cast<uint8_t>(value);
  };
  if (column < kSomeHeads) {
    put(0, column, high);
    put(0, column + 8, middle);
    put(1, many ? column + 8 : column, low, !many);
  } else {
    const int row = column - kSomeHeads;
    put(1, row, high);
    put(1, row + 4, middle);
    put(2, row, low);
    put(2, row + 4, low);
    put(2, row + 8, 0);
    put(2, row + 12, 0);
  }
}

// The same for fp8 keys: words of four codes go round the members.
DEVICE_FUNCTION void put_query_half(uint16_t* tile, bool many, int column, int d, uint16_t half) {
  const int word = d / 4, member = word % 4, step = word / 4, pair = d % 4 / 2;
  const auto put = [&](int row, int which) {  // which: of the lane's words
    const int words = many ? 4 : 2;
    tile[((step * 32 + 4 * row + member) * words + which) * 2 + d % 2] = half;
  };
  if (!many)
    put(column, pair);
  else if (column < kSomeHeads)
    put(column, 2 * pair);
  else
    put(column - kSomeHeads, 2 * pair + 1), put(column - kSomeHeads + 4, 2 * pair + 1);
}

}  // namespace tq
