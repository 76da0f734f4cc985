// SPDX-License-Identifier: Apache-2.0
// What an encoder writes into a slot, element groups one by one and in double where a sum decides a
// code: the definition in code. The portable encoder is made of it, and a tuned one falls back on
// it for vectors that its own arithmetic does not serve.
//
// A vector with NaN or inf gets codes 0 and norm NaN (centroid keys) or scale NaN and zero 0
// (values).
#pragma once

#include "tq/encode.h"
#include "tq/rotation.h"

namespace tq::encode {

inline constexpr float kMostHalf = 65504;
inline constexpr float kHalfOverflows = 65520;  // rounds to infinity from here on

struct Source {
  Strided<3> key, value;  // [N,Hk,D]
  Strided<1> slot_mapping;
  Cache cache;
  SlotFormat format;
  Rotation pi;
  Codebook centroids;
  int64_t tokens, heads;
};

inline Source source_of(const Args& a) {
  const TensorView key = a.tensor("key");
  Source s{};
  s.key = strided<3>(key);
  s.value = strided<3>(a.tensor("value"));
  s.slot_mapping = strided<1>(a.tensor("slot_mapping"));
  s.cache = cache_of(a);
  s.format = slot_format(a, key.size(2));
  if (!s.format.fp8) s.pi = rotation_of(a);
  s.centroids = codebook(a, s.format);
  s.tokens = key.size(0);
  s.heads = key.size(1);
  return s;
}

DEVICE_FUNCTION bool in_cache(const Source& s, int64_t slot) {
  return slot >= 0 && slot < s.cache.blocks * s.cache.page;
}
// Slot of a token, or -1 where it is to be skipped.
DEVICE_FUNCTION int64_t slot_of(const Source& s, int64_t token) {
  const int64_t slot =
      load_index(s.slot_mapping.data, s.slot_mapping.dtype, token * s.slot_mapping.stride[0]);
  return in_cache(s, slot) ? slot : -1;
}

// sqrt of a finite double >= 0 from the fp32 one: the argument is scaled by a power of 4 into [1,
// 4), one Newton step doubles the 24 good bits.
DEVICE_FUNCTION double square_root(double x) {
  if (x == 0) return 0;
  const int exponent = static_cast<int>(device::bit_cast<uint64_t>(x) >> 52) - 1023;
  const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
  const double down = device::bit_cast<double>(static_cast<uint64_t>(1023 - 2 * half) << 52);
  const double up = device::bit_cast<double>(static_cast<uint64_t>(1023 + half) << 52);
  const double m = x * down;
  const double r = device::sqrt(static_cast<float>(m));
  return 0.5 * (r + m / r) * up;
}

// Between centroids c and c + 1; fp32, as the definition has it.
DEVICE_FUNCTION float midpoint(const Codebook& book, int c) {
  return (book.data[c * book.stride] + book.data[(c + 1) * book.stride]) * 0.5f;
}

DEVICE_FUNCTION void encode_fp8_key(const Source& s, const Slot& slot, int64_t at, int group,
                                    int count) {
  uint64_t word = 0;
  DEVICE_ROLLED
  for (int e = 0; e < count; ++e) {
    const float x =
        load_float(s.key.data, s.key.dtype, at + (group * kGroup + e) * s.key.stride[2]);
    word |= uint64_t{encode_fp8(s.format.fp8, x)} << (8 * e);
  }
  store_group(slot, 0, s.format.key_bytes, 8, group, word);
}

DEVICE_FUNCTION void encode_centroid_key(const Source& s, const Slot& slot, int64_t at, int group,
                                         int count) {
  double squares = 0;  // cannot overflow for fp32 elements: not finite iff an element is not
  DEVICE_ROLLED
  for (int j = 0; j < s.format.head_dim; ++j) {
    const double x = load_float(s.key.data, s.key.dtype, at + j * s.key.stride[2]);
    squares += x * x;
  }
  const bool finite = squares < 1e300;
  const double norm = finite ? square_root(squares) : 0;
  uint64_t word = 0;
  if (finite) {
    double y[kGroup];
    rotate_group(s.pi, s.key.data, s.key.dtype, at, s.key.stride[2], s.format.head_dim,
                 group * kGroup, count, y);
    const int levels = 1 << s.format.key_bits;
    for (int e = 0; e < kGroup; ++e) {
      if (e >= count) break;
      const double unit = y[e] / (norm + 1e-8);
      int code = 0;
      DEVICE_ROLLED
      for (int c = 0; c + 1 < levels; ++c)
        code += unit >= static_cast<double>(midpoint(s.centroids, c));
      word |= static_cast<uint64_t>(code) << (e * s.format.key_bits);
    }
  }
  store_group(slot, 0, s.format.key_bytes, s.format.key_bits, group, word);
  if (group == 0)
    store_half(slot, s.format.norm_at,
               !finite            ? device::nan()
               : norm < kMostHalf ? static_cast<float>(norm)
                                  : kMostHalf);
}

DEVICE_FUNCTION float load_value(const Source& s, int64_t at, int d, float most) {
  const float v = load_float(s.value.data, s.value.dtype, at + d * s.value.stride[2]);
  return device::min(device::max(v, -most), most);
}

struct ValueRange {
  float low, scale;
  bool finite;  // no element is NaN or inf
};
DEVICE_FUNCTION ValueRange value_range(const Source& s, int64_t at, float most) {
  float low = most, high = -most;
  bool finite = true;
  DEVICE_ROLLED
  for (int d = 0; d < s.format.head_dim; ++d) {
    const float v = load_value(s, at, d, most);
    finite = finite && device::abs(v) < device::infinity();
    low = device::min(low, v);
    high = device::max(high, v);
  }
  const float levels = static_cast<float>((1 << s.format.value_bits) - 1);
  return {low, device::max(device::divide(high - low, levels), 1e-8f), finite};
}

DEVICE_FUNCTION void encode_value(const Source& s, const Slot& slot, int64_t at, int group,
                                  int count) {
  float most = device::infinity();
  ValueRange range = value_range(s, at, most);
  const bool finite = range.finite;
  // A minimum or scale that f16 cannot hold: clamp before quantising. Clamping only what is stored
  // would shift every other element of the vector.
  if (finite && device::max(device::abs(range.low), range.scale) >= kHalfOverflows) {
    most = kMostHalf;
    range = value_range(s, at, most);
  }
  const int top = (1 << s.format.value_bits) - 1;
  uint64_t word = 0;
  DEVICE_ROLLED
  for (int e = 0; finite && e < count; ++e) {
    const float steps =
        device::divide(load_value(s, at, group * kGroup + e, most) - range.low, range.scale);
    const int code = static_cast<int>(steps + 0.5f);
    word |= static_cast<uint64_t>(code < top ? code : top) << (e * s.format.value_bits);
  }
  store_group(slot, s.format.value_at, s.format.value_bytes, s.format.value_bits, group, word);
  if (group == 0) {
    store_half(slot, s.format.scale_at, finite ? range.scale : device::nan());
    store_half(slot, s.format.zero_at, finite ? range.low : 0);
  }
}

}  // namespace tq::encode
