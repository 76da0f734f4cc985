// SPDX-License-Identifier: Apache-2.0
// Centroid codes of encode_sm_80.cu: sums to codes, and again in double near a midpoint.
#pragma once

#include "tq/encode_rotation.h"

namespace tq::encode::sm_80 {

// Elements of a wave that lie near a midpoint, in shared memory.
inline constexpr int kNearRoom = 63;
struct NearList {
  int count;               // may be beyond the room
  int element[kNearRoom];  // vector * 256 + dim
};

// What a lane needs to know of its two keys, 2 * member + c.
struct KeyScales {
  float unit[2];   // of sums, to elements of the rotated unit vector
  float close[2];  // to a midpoint; below 0: no element may be near
  bool hard[2];    // takes the definition's path
};

// Squares of the keys from sums of H. Several sums: no chain of additions.
template <int D>
DEVICE_FUNCTION void square_sums(const Sums<D>& sums, float (&squares)[2]) {
  DEVICE_UNROLL
  for (int c = 0; c < 2; ++c) {
    float x[4] = {};
    DEVICE_UNROLL
    for (int t = 0; t < D / 64; ++t) DEVICE_UNROLL
    for (int e = 0; e < kGroup; ++e)
      x[e % 4] = device::fma(sums.get(t, c, e), sums.get(t, c, e), x[e % 4]);
    float all = (x[0] + x[1]) + (x[2] + x[3]);
    DEVICE_UNROLL
    for (int mask = 4; mask < device::kWave; mask *= 2) all += device::shuffle_xor(all, mask);
    squares[c] = all * (1.0f / D);
  }
}
// Of the keys as they were loaded.
template <class T, int kLoads>
DEVICE_FUNCTION void square_keys(const Piece<T> (&key)[kLoads], float (&squares)[2]) {
  float x[4] = {};
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e)
    x[e % 4] = device::fma(element_of<T>(key[i], e), element_of<T>(key[i], e), x[e % 4]);
  float all = (x[0] + x[1]) + (x[2] + x[3]);
  DEVICE_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) all += device::shuffle_xor(all, mask);
  DEVICE_UNROLL
  for (int c = 0; c < 2; ++c) squares[c] = device::shuffle(all, 4 * (2 * member() + c));
}

// `squares` of the keys, `unit` of the sums. Norms to the stage.
template <int D>
DEVICE_FUNCTION KeyScales scale_keys(const Params& p, const Sums<D>& sums,
                                     const float (&squares)[2], float unit, float close,
                                     uint8_t* stage) {
  KeyScales k;
  uint8_t* norms = stage + 2 * member() * p.stage.used + p.s.format.norm_at;
  DEVICE_UNROLL
  for (int c = 0; c < 2; ++c) {
    const float inverse = device::rsqrt_fast(squares[c]);
    k.unit[c] = unit * inverse * device::fma(-1e-8f, inverse, 1.0f);
    k.close[c] = close;
    k.hard[c] = !(squares[c] > 0x1p-28f && squares[c] < 0x1p100f);
    if (group() == 0)
      stage_half(norms, c * p.stage.used, device::min(squares[c] * inverse, kMostHalf));
  }
  if (device::any(k.hard[0] || k.hard[1])) {  // perhaps they are zero
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      float most = 0;
      DEVICE_UNROLL
      for (int t = 0; t < D / 64; ++t) DEVICE_UNROLL
      for (int e = 0; e < kGroup; ++e) most = most == 0 ? sums.get(t, c, e) : most;
      int other = most != 0;
      DEVICE_UNROLL
      for (int mask = 4; mask < device::kWave; mask *= 2) other |= device::shuffle_xor(other, mask);
      if (!k.hard[c]) continue;
      k.unit[c] = 0;
      k.close[c] = -1;
      k.hard[c] = other != 0;
      if (group() == 0 && !other) stage_half(norms, c * p.stage.used, 0);
    }
  }
  return k;
}
// Of this lane's vector.
DEVICE_FUNCTION bool is_hard(const KeyScales& k) {
  if (!device::any(k.hard[0] || k.hard[1])) return false;
  const int even = device::shuffle(static_cast<int>(k.hard[0]), group() / 2);
  const int odd = device::shuffle(static_cast<int>(k.hard[1]), group() / 2);
  return (group() % 2 ? odd : even) != 0;
}

// Codes of all sums to the stage. `table`: this lane's entry of the bins.
template <int D>
DEVICE_FUNCTION void encode_sums(const Params& p, const CodeBins& bins, float table,
                                 const Sums<D>& sums, const KeyScales& k, uint8_t* stage,
                                 NearList* list) {
  const uint32_t bits = p.s.format.key_bits;
  DEVICE_UNROLL
  for (int c = 0; c < 2; ++c) {
    const int vector = 2 * member() + c;
    const float slope = bins.slope * k.unit[c], offset = bins.offset, unit = k.unit[c];
    DEVICE_UNROLL
    for (int t = 0; t < D / 64; ++t) {
      uint32_t codes = 0;  // inverted: one more where the element lies below the midpoint
      float nearest = device::infinity();
      DEVICE_UNROLL
      for (int e = 0; e < kGroup; ++e) {
        const Nearest n = find_bin(table, slope, offset, sums.get(t, c, e), unit);
        nearest = device::min(nearest, device::abs(n.over));
        codes = device::funnel_shift_right(
            codes, n.word + (device::bit_cast<uint32_t>(n.over) >> 31), bits);
      }
      stage_codes(stage + vector * p.stage.used, Sums<D>::piece(t) * bits, bits,
                  ~codes >> (32 - kGroup * bits));
      if (!device::any(nearest < k.close[c])) continue;
      DEVICE_UNROLL
      for (int e = 0; e < kGroup; ++e) {
        const Nearest n = find_bin(table, slope, offset, sums.get(t, c, e), unit);
        if (!(device::abs(n.over) < k.close[c])) continue;
        const int at = device::atomic_add(&list->count, 1);
        if (at < kNearRoom) list->element[at] = vector * 256 + Sums<D>::piece(t) * kGroup + e;
      }
    }
  }
}

template <class T>
DEVICE_FUNCTION float float_of(T x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return device::to_float(x);
}
// The code of one element in double, by a wave. `key`: the offset of its vector.
template <class T, int D>
DEVICE_FUNCTION uint32_t exact_code(const Source& s, const CodeBins& bins, int64_t key, int dim) {
  const T* x = static_cast<const T*>(s.key.data) + key;
  const float* row = s.pi.data + dim * s.pi.stride[0];
  T elements[D / 32];
  float factors[D / 32];
  DEVICE_UNROLL
  for (int i = 0; i < D / 32; ++i) {
    elements[i] = x[device::lane() + 32 * i];
    factors[i] = row[device::lane() + 32 * i];
  }
  double y = 0, squares = 0;
  DEVICE_UNROLL
  for (int i = 0; i < D / 32; ++i) {
    const double e = float_of(elements[i]);
    y += e * static_cast<double>(factors[i]);
    squares += e * e;
  }
  y = device::wave_sum(y);
  squares = device::wave_sum(squares);
  // The root by one step from the one in fp32; squares are not small.
  const float root = device::sqrt(static_cast<float>(squares));
  const double norm = root + (squares - static_cast<double>(root) * root) *
                                 static_cast<double>(device::reciprocal_fast(2 * root));
  const bool reached =
      device::lane() < bins.midpoints &&
      y >= static_cast<double>(bins.midpoint[device::lane() % kMostMidpoints]) * (norm + 1e-8);
  return static_cast<uint32_t>(device::popcount(device::ballot(reached)));
}
DEVICE_FUNCTION void patch_code(uint8_t* slot, int bits, int dim, uint32_t code) {
  const int shift = dim * bits % 8;
  uint8_t* at = slot + dim * bits / 8;
  const uint32_t mask = ((1u << bits) - 1) << shift, moved = code << shift;
  at[0] = static_cast<uint8_t>((at[0] & ~mask) | moved);
  if (shift + bits > 8) at[1] = static_cast<uint8_t>((at[1] & ~(mask >> 8)) | moved >> 8);
}
// Near elements once more, once the stage is written. False: too many, the keys of the wave take
// the definition's path.
template <class T, int D>
DEVICE_FUNCTION bool settle_near(const Params& p, const CodeBins& bins, const Walk& w,
                                 NearList* list, uint8_t* stage) {
  device::sync_wave();
  const int count = list->count;
  if (count == 0) return true;
  const int64_t source = p.key.offset(w.token, w.head);
  const bool full = count > kNearRoom;
  DEVICE_ROLLED
  for (int n = 0; n < count && !full; ++n) {
    const int vector = list->element[n] / 256, dim = list->element[n] % 256;
    const uint32_t code = exact_code<T, D>(p.s, bins, device::shuffle(source, 4 * vector), dim);
    if (device::lane() == 0)
      patch_code(stage + vector * p.stage.used, p.s.format.key_bits, dim, code);
  }
  device::sync_wave();
  if (device::lane() == 0) list->count = 0;
  return !full;
}

}  // namespace tq::encode::sm_80
