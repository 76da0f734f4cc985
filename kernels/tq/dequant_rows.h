// SPDX-License-Identifier: Apache-2.0
// What a lane of tq.dequant's tuned kernel (dequant_sm_80.cu) makes of a slot: 16 elements of the
// key and 16 of the value. Few instructions count here (dequant.md).
#pragma once

#include "device/nvidia.h"
#include "tq/slot_codes.h"

namespace tq::dequant::sm_80 {

// Four words that go out at once.
struct Row8 {
  uint32_t pair[4];  // of f16
};

DEVICE_FUNCTION uint32_t load_u16(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}
DEVICE_FUNCTION float half_at(const uint8_t* at) {
  return device::low_half<device::f16>(load_u16(at));
}

// The codes of elements [8 group, 8 group + 8) of a stream, the first at bit 0; undefined bits
// above them. Streams of 3 bits have a multiple of 6 bytes: what is read beyond a group is
// another's, or the field behind.
template <int Bits>
DEVICE_FUNCTION uint32_t load_codes(const uint8_t* stream, int group) {
  static_assert(Bits == 3 || Bits == 4);
  const int at = group * Bits & ~1;
  const uint32_t word = load_u16(stream + at) | load_u16(stream + at + 2) << 16;
  return Bits == 3 ? word >> ((group & 1) * 8) : word;
}

// What a lane reads of a slot: two groups of its key and of its value.
struct Piece {
  uint32_t key[2][2], value[2];
  float norm, scale, zero;
};

template <int KeyBits, int ValueBits>
DEVICE_FUNCTION Piece load_piece(const SlotFormat& f, const uint8_t* slot, int group, int apart) {
  Piece piece{};
  const uint8_t* value = slot + f.value_at;
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int own = n == 0 ? group : group + apart;
    if constexpr (KeyBits == 8) {  // words: the size of the slot is a multiple of 4
      DEVICE_UNROLL
      for (int i = 0; i < 2; ++i)
        piece.key[n][i] = *reinterpret_cast<const uint32_t*>(slot + own * kGroup + 4 * i);
    } else {
      piece.key[n][0] = load_codes<KeyBits>(slot, own);
    }
    if constexpr (KeyBits == 8 && ValueBits == 4)
      piece.value[n] = *reinterpret_cast<const uint32_t*>(value + 4 * own);
    else
      piece.value[n] = load_codes<ValueBits>(value, own);
  }
  if constexpr (KeyBits < 8) piece.norm = half_at(slot + f.norm_at);
  piece.scale = half_at(slot + f.scale_at);
  piece.zero = half_at(slot + f.zero_at);
  return piece;
}

// Code e of a group, shifted left by kShift; the word's other bits are those of `above`. Four-bit
// codes lie in bytes, from which one instruction takes one.
template <int Bits, int kShift>
struct Codes {
  uint32_t even, odd;
  DEVICE_FUNCTION explicit Codes(uint32_t word) : even(word), odd(word) {
    if constexpr (Bits == 4) {
      even = word << kShift & (0x0f0f0f0fu << kShift);
      odd = word >> (4 - kShift) & (0x0f0f0f0fu << kShift);
    }
  }
  DEVICE_FUNCTION uint32_t operator()(int e, uint32_t above) const {
    if constexpr (Bits == 4)
      return device::permute_bytes(e % 2 ? odd : even, above, 0x7650u + uint32_t(e / 2));
    const int at = e * Bits - kShift;
    return ((at < 0 ? even << -at : even >> at) & (7u << kShift)) | above;
  }
};

// An e4m3 byte moved into an f16's exponent and mantissa is the number times a power of two, also
// where it is denormal.
DEVICE_FUNCTION uint32_t fp8_pair(uint32_t bytes_high, uint32_t factor) {
  const uint32_t pair = (bytes_high & 0x80008000u) | ((bytes_high & 0x7f007f00u) >> 1);
  return device::multiply_f16x2(pair, factor);
}
DEVICE_FUNCTION bool is_nan_byte(tk_dtype flavour, uint32_t byte) {
  if (flavour == TK_E4M3FN) return (byte & 0x7f) == 0x7f;
  return flavour == TK_E4M3FNUZ && byte == 0x80;
}
DEVICE_FUNCTION bool has_nan_byte(tk_dtype flavour, uint32_t bytes) {
  if (flavour == TK_E4M3FN) return (((bytes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
  if (flavour != TK_E4M3FNUZ) return false;
  const uint32_t x = bytes ^ 0x80808080u;  // a byte 0?
  return ((x - 0x01010101u) & ~x & 0x80808080u) != 0;
}
DEVICE_FUNCTION Row8 fp8_row(tk_dtype flavour, const uint32_t (&bytes)[2]) {
  const uint32_t factor = flavour == TK_E4M3FN     ? 0x5c005c00u   // 2^8
                          : flavour == TK_E4M3FNUZ ? 0x58005800u   // 2^7
                                                   : 0x3c003c00u;  // 1
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 2; ++i) {
    row.pair[2 * i] = fp8_pair(device::permute_bytes(bytes[i], 0, 0x1404), factor);
    row.pair[2 * i + 1] = fp8_pair(device::permute_bytes(bytes[i], 0, 0x3424), factor);
    if (has_nan_byte(flavour, bytes[i])) {
      DEVICE_UNROLL
      for (int b = 0; b < 4; ++b)
        if (is_nan_byte(flavour, bytes[i] >> (8 * b) & 255))
          row.pair[2 * i + b / 2] |= b % 2 ? 0x7e000000u : 0x7e00u;
    }
  }
  return row;
}

// Centroids times the norm; with norm correction times norm / sqrt(sum c^2 + 1e-16), the sum over
// the lanes of the slot.
template <int Bits, int kLanes>
DEVICE_FUNCTION void centroid_rows(const std::byte* centroids, bool norm_correction,
                                   const Piece& piece, const bool (&active)[2], Row8 (&row)[2]) {
  float c[2][kGroup];
  float squares = 0;
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const Codes<Bits, 2> codes(piece.key[n][0]);  // offsets of floats
    float sum = 0;
    DEVICE_UNROLL
    for (int e = 0; e < kGroup; ++e) {
      c[n][e] = *reinterpret_cast<const float*>(centroids + codes(e, 0));
      sum = device::fma(c[n][e], c[n][e], sum);
    }
    if (active[n]) squares += sum;
  }
  float factor = piece.norm;
  if (norm_correction) {
    DEVICE_UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) squares += device::shuffle_xor(squares, mask);
    factor *= device::rsqrt_fast(squares + 1e-16f);
  }
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i)
      row[n].pair[i] =
          device::pack_halves<device::f16>(factor * c[n][2 * i], factor * c[n][2 * i + 1]);
  }
}

// magic: 2^23 as a float.
template <int Bits>
DEVICE_FUNCTION Row8 value_row(const Piece& piece, int n, uint32_t magic) {
  const Codes<Bits, 0> codes(piece.value[n]);
  float x[kGroup];
  DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e) {
    const float number = device::bit_cast<float>(codes(e, magic)) - 8388608.0f;
    x[e] = device::fma(number, piece.scale, piece.zero);  // the product is exact: rounded once
  }
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i)
    row.pair[i] = device::pack_halves<device::f16>(x[2 * i], x[2 * i + 1]);
  return row;
}

}  // namespace tq::dequant::sm_80
