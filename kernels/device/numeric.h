// SPDX-License-Identifier: Apache-2.0
// Number formats by integer arithmetic, the same bits on every backend. device.h includes this file
// after the backend, which brings DEVICE_FUNCTION and bit_cast, and may bring half_to_float().
#pragma once

#include <cstdint>

namespace device {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

// A small float format is a sign bit, exponent and kMantissa bits, with a bias. `code` is such a
// number without its sign, as an integer; codes of finite numbers are ordered like their values.

// The code nearest to |x|, ties to even, as if the exponent had no end: the caller handles
// overflow, infinity and NaN.
template <int kMantissa, int kBias>
DEVICE_FUNCTION uint32_t code_of(uint32_t magnitude_bits) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr int kFirstNormal = 127 + 1 - kBias;  // fp32 exponent of the smallest normal number
  const int exponent = int(magnitude_bits >> 23);
  if (exponent >= kFirstNormal) {
    const uint32_t odd = (magnitude_bits >> kDrop) & 1;
    return ((magnitude_bits + ((1u << (kDrop - 1)) - 1 + odd)) >> kDrop) -
           (uint32_t(127 - kBias) << kMantissa);
  }
  const int drop = kDrop + kFirstNormal - exponent;
  if (drop > 25) return 0;  // also every fp32 denormal
  const uint32_t significand = (magnitude_bits & 0x7fffffu) | 0x800000u;
  const uint32_t odd = (significand >> drop) & 1;
  return (significand + ((1u << (drop - 1)) - 1 + odd)) >> drop;
}

// The value of a finite code.
template <int kMantissa, int kBias>
DEVICE_FUNCTION float value_of(uint32_t code) {
  constexpr uint32_t kStep = uint32_t(128 - kBias - kMantissa) << 23;  // of denormal numbers
  const uint32_t exponent = code >> kMantissa;
  if (exponent == 0) return float(code) * bit_cast<float>(kStep);
  return bit_cast<float>((code << (23 - kMantissa)) + (uint32_t(127 - kBias) << 23));
}

DEVICE_FUNCTION float with_sign(float magnitude, uint32_t sign) {
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign);
}

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

DEVICE_FUNCTION float to_float(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }

#ifdef DEVICE_HALF_TO_FLOAT  // the backend has an instruction, which may change a NaN's payload
DEVICE_FUNCTION float to_float(f16 x) { return half_to_float(x.bits); }
#else
DEVICE_FUNCTION float to_float(f16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, code = x.bits & 0x7fffu;
  if (code >= 0x7c00u) return bit_cast<float>(sign | kInfinityBits | ((code & 0x3ffu) << 13));
  return with_sign(value_of<10, 15>(code), sign);
}
#endif

template <class T>
DEVICE_FUNCTION T from_float(float x);

template <>
DEVICE_FUNCTION bf16 from_float<bf16>(float x) {
  const uint32_t u = bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > kInfinityBits) return bf16{uint16_t((u >> 16) | 0x40u)};
  return bf16{uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}

template <>
DEVICE_FUNCTION f16 from_float<f16>(float x) {
  const uint32_t u = bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  if (magnitude > kInfinityBits)
    return f16{uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  const uint32_t code = code_of<10, 15>(magnitude);
  return f16{uint16_t(sign | (code < 0x7c00u ? code : 0x7c00u))};
}

DEVICE_FUNCTION float to_float(float x) { return x; }
template <>
DEVICE_FUNCTION float from_float<float>(float x) {
  return x;
}

// fp8, decoding: a NaN byte is NaN.
DEVICE_FUNCTION float decode_e4m3fn(uint8_t byte) {
  const uint32_t code = byte & 0x7fu, sign = uint32_t(byte & 0x80u) << 24;
  return code == 0x7fu ? bit_cast<float>(sign | kNanBits) : with_sign(value_of<3, 7>(code), sign);
}
DEVICE_FUNCTION float decode_e4m3fnuz(uint8_t byte) {  // no -0: its byte is the one NaN
  if (byte == 0x80u) return bit_cast<float>(kNanBits);
  return with_sign(value_of<3, 8>(byte & 0x7fu), uint32_t(byte & 0x80u) << 24);
}
DEVICE_FUNCTION float decode_e4b15(uint8_t byte) {  // neither infinity nor NaN
  return with_sign(value_of<3, 15>(byte & 0x7fu), uint32_t(byte & 0x80u) << 24);
}
DEVICE_FUNCTION float decode_e5m2(uint8_t byte) {
  const uint32_t code = byte & 0x7fu, sign = uint32_t(byte & 0x80u) << 24;
  if (code >= 0x7cu) return bit_cast<float>(sign | (code == 0x7cu ? kInfinityBits : kNanBits));
  return with_sign(value_of<2, 15>(code), sign);
}

// fp8, encoding: round to nearest even, saturating (infinity too), NaN kept.
template <int kMantissa, int kBias>
DEVICE_FUNCTION uint32_t saturated_code(uint32_t magnitude_bits, uint32_t largest) {
  if (magnitude_bits >= kInfinityBits) return largest;
  const uint32_t code = code_of<kMantissa, kBias>(magnitude_bits);
  return code < largest ? code : largest;
}
DEVICE_FUNCTION uint8_t encode_e4m3fn(float x) {
  const uint32_t u = bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  if (magnitude > kInfinityBits) return uint8_t(sign | 0x7fu);
  return uint8_t(sign | saturated_code<3, 7>(magnitude, 0x7eu));
}
DEVICE_FUNCTION uint8_t encode_e4m3fnuz(float x) {
  const uint32_t u = bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  if (magnitude > kInfinityBits) return 0x80u;
  const uint32_t code = saturated_code<3, 8>(magnitude, 0x7fu);
  return uint8_t(code == 0 ? 0u : sign | code);
}
DEVICE_FUNCTION uint8_t encode_e5m2(float x) {
  const uint32_t u = bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
  if (magnitude > kInfinityBits) return uint8_t(sign | 0x7fu);
  return uint8_t(sign | saturated_code<2, 15>(magnitude, 0x7bu));
}
// As the encoder that writes this format does it: first f16 (nearest even), magnitudes clamped
// to 1.75, then half up. There is no NaN to keep; it becomes the clamp, with its sign.
DEVICE_FUNCTION uint8_t encode_e4b15(float x) {
  const uint32_t half = from_float<f16>(x).bits, magnitude = half & 0x7fffu;
  return uint8_t(((half >> 8) & 0x80u) |
                 (((magnitude < 0x3f00u ? magnitude : 0x3f00u) + 0x40u) >> 7));
}

}  // namespace device
