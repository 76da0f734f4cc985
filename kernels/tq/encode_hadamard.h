// SPDX-License-Identifier: Apache-2.0
// Centroid codes for Pi = c H, H the Sylvester-Hadamard matrix, of eight vectors of a wave. An
// index of D = 64, 128 or 256 elements is taken apart: four bits are rotated by one matrix
// instruction a chunk of 16 elements, whose constant factor is H of 16 and whose products are
// exact; the others lie in the registers of a lane and take additions. So a lane ends with 8
// neighbouring elements of two vectors, D / 64 times: whole bytes of codes, and no exchange.
//
//   element   bit 0   1, 2   3, 4     5 ...   the highest
//   input     half    pair   member   load    load
//   sums      row 8   pair   group    load    group
#pragma once

#include "tq/encode_eight.h"
#include "tq/encode_keys.h"

namespace tq::encode::sm_80 {

// Bound of |y - exact y| / |x|: eight products and a sum are cut twice to 2^-23 of the largest,
// which sums up to 8.5 * 2^-23 over all chunks; then roundings of the additions. The smaller parts of
// fp32 add less than 2^-7 of that.
inline constexpr float kHadamardError = 12 * 0x1p-23f;
// Norm and scaling relative to the midpoints: 19 roundings of squares, the reciprocal root, and the
// error above should it point the same way in all elements.
inline constexpr float kHadamardScaling = 0x1p-18f;

// This thread's share of Pi, some pieces at a time: a load long before it is looked at.
template <int D, int kThreads>
struct PiPieces {
  static constexpr int kPieces = D / 4;  // of a row
  static constexpr int kOfThread = D * kPieces / kThreads, kBatch = kOfThread < 8 ? kOfThread : 8;
  Floats4 x[kBatch];
  DEVICE_FUNCTION void load(const Rotation& pi, int first) {
    DEVICE_UNROLL
    for (int n = 0; n < kBatch; ++n) {
      const int i = first + n * kThreads;
      x[n] = device::load16<Floats4>(pi.data + i / kPieces * pi.stride[0] + i % kPieces * 4);
    }
  }
  // Not 0: an element differs from magnitude times H.
  DEVICE_FUNCTION uint32_t differ(uint32_t magnitude, int first) const {
    uint32_t other = 0;
    DEVICE_UNROLL
    for (int n = 0; n < kBatch; ++n) {
      const uint32_t i = static_cast<uint32_t>(first + n * kThreads);
      const uint32_t row = i / kPieces;
      uint32_t both = row & (i % kPieces * 4);  // parity by halving
      DEVICE_UNROLL
      for (int by = 4; by > 0; by /= 2) both ^= both >> by;
      const uint32_t odd = both & 1, low = odd ^ (row & 1), high = row >> 1 & 1;
      const uint32_t sign[4] = {odd, low, odd ^ high, low ^ high};
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e)
        other |= device::bit_cast<uint32_t>(x[n].x[e]) ^ magnitude ^ sign[e] << 31;
    }
    return other;
  }
};
// False: this thread's share, whose first pieces are loaded, differs.
template <int D, int kThreads>
DEVICE_FUNCTION bool may_be_hadamard(const Rotation& pi, PiPieces<D, kThreads>& pieces,
                                     float magnitude) {
  using Pieces = PiPieces<D, kThreads>;
  const uint32_t bits = device::bit_cast<uint32_t>(magnitude);
  uint32_t other = bits >= 0x7f800000u || bits < 0x00800000u;  // negative, not finite, tiny
  DEVICE_ROLLED
  for (int first = device::thread();;) {
    other |= pieces.differ(bits, first);
    first += Pieces::kBatch * kThreads;
    if (first >= D * Pieces::kPieces) break;
    pieces.load(pi, first);
  }
  return other == 0;
}

// H of 16 as the first factor.
template <class T>
DEVICE_FUNCTION void hadamard16(uint32_t (&a)[4]) {
  constexpr uint32_t kOne = std::is_same_v<T, device::f16> ? 0x3c00 : 0x3f80;
  const uint32_t both = group() & 3 & member();
  const uint32_t odd = (both ^ both >> 1) & 1, high = group() >> 2 & 1;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t sign = odd ^ (i >= 2 ? high : 0);
    const uint32_t low_half = kOne | sign << 15, high_half = kOne | (sign ^ (i & 1)) << 15;
    a[i] = low_half | high_half << 16;
  }
}

// Element e of the 8 of load t, vector 2 * member + c.
template <int D>
struct Sums {
  static constexpr int kLoads = D / 64;
  float of[kLoads][4][4];
  DEVICE_FUNCTION float get(int t, int c, int e) const { return of[t][e / 2][e % 2 * 2 + c]; }
  // The group of 8 elements, of D / 8.
  DEVICE_FUNCTION static int piece(int t) {
    return (group() & 3) + 4 * t + 4 * kLoads * (group() >> 2);
  }
};

DEVICE_FUNCTION void butterfly(float (&a)[4], float (&b)[4]) {
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float sum = a[i] + b[i];
    b[i] = a[i] - b[i];
    a[i] = sum;
  }
}
// Pairs n of two pieces, times H of 16, added to the sums.
template <class T>
DEVICE_FUNCTION void add_chunk(const uint32_t (&a)[4], const Halves8& low, const Halves8& high,
                               int n, float (&sum)[4]) {
  const uint32_t b[2] = {low.pair[n], high.pair[n]};
  device::multiply_16x8x16<T>(sum, a, b);
}
// fp32 in three parts of 8 bits, the smallest first.
template <class T>
DEVICE_FUNCTION void add_chunk(const uint32_t (&a)[4], const Floats8& low, const Floats8& high,
                               int n, float (&sum)[4]) {
  uint32_t b[3][2];
  DEVICE_UNROLL
  for (int r = 0; r < 2; ++r) {
    float x[2];
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) x[e] = element_of<T>(r ? high : low, 2 * n + e);
    DEVICE_UNROLL
    for (int part = 2; part >= 0; --part) {
      const uint32_t bits[2] = {device::bit_cast<uint32_t>(x[0]), device::bit_cast<uint32_t>(x[1])};
      b[part][r] = device::permute_bytes(bits[0], bits[1], 0x7632);
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) x[e] -= device::bit_cast<float>(bits[e] & 0xffff0000u);
    }
  }
  DEVICE_UNROLL
  for (int part = 0; part < 3; ++part) device::multiply_16x8x16<device::bf16>(sum, a, b[part]);
}
template <class T, int D>
DEVICE_FUNCTION void rotate_eight(const uint32_t (&a)[4], const Piece<T> (&x)[D / 32],
                                  Sums<D>& sums) {
  constexpr int kLoads = D / 64;
  DEVICE_UNROLL
  for (int t = 0; t < kLoads; ++t) {
    DEVICE_UNROLL
    for (int q = 0; q < 4; ++q) {
      DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) sums.of[t][q][i] = 0;
      add_chunk<T>(a, x[t], x[t + kLoads], q, sums.of[t][q]);
    }
    butterfly(sums.of[t][0], sums.of[t][1]);
    butterfly(sums.of[t][2], sums.of[t][3]);
    butterfly(sums.of[t][0], sums.of[t][2]);
    butterfly(sums.of[t][1], sums.of[t][3]);
  }
  DEVICE_UNROLL
  for (int by = 1; by < kLoads; by *= 2) DEVICE_UNROLL
  for (int t = 0; t < kLoads; ++t)
    if (!(t & by)) DEVICE_UNROLL
  for (int q = 0; q < 4; ++q) butterfly(sums.of[t][q], sums.of[t + by][q]);
}

// What a lane needs to know of its two keys.
struct KeyScales {
  float unit[2];   // of sums, to elements of the rotated unit vector
  float close[2];  // of the bins; below 0: no element may be near
  bool hard[2];    // takes the definition's path
};
template <int D>
DEVICE_FUNCTION KeyScales scale_eight(const Params& p, const Sums<D>& sums, float magnitude,
                                      float close, uint8_t* stage) {
  KeyScales k;
  DEVICE_UNROLL
  for (int c = 0; c < 2; ++c) {
    float squares = 0;
    DEVICE_UNROLL
    for (int t = 0; t < D / 64; ++t) DEVICE_UNROLL
    for (int e = 0; e < kGroup; ++e)
      squares = device::fma(sums.get(t, c, e), sums.get(t, c, e), squares);
    DEVICE_UNROLL
    for (int mask = 4; mask < device::kWave; mask *= 2)
      squares += device::shuffle_xor(squares, mask);
    squares *= 1.0f / D;
    const float inverse = device::rsqrt_fast(squares);
    k.unit[c] = magnitude * inverse * device::fma(-1e-8f, inverse, 1.0f);
    k.close[c] = close;
    k.hard[c] = !(squares > 0x1p-28f && squares < 0x1p100f);
    if (group() == 0)
      stage_half(stage + (2 * member() + c) * p.stage.used, p.s.format.norm_at,
                 device::min(squares * inverse, kMostHalf));
  }
  if (device::any(k.hard[0] || k.hard[1])) {  // perhaps they are zero
    DEVICE_UNROLL
    for (int c = 0; c < 2; ++c) {
      float most = 0;
      DEVICE_UNROLL
      for (int t = 0; t < D / 64; ++t) DEVICE_UNROLL
      for (int e = 0; e < kGroup; ++e) most = most == 0 ? sums.get(t, c, e) : most;
      bool zero = most == 0;
      DEVICE_UNROLL
      for (int mask = 4; mask < device::kWave; mask *= 2) {
        const int other = device::shuffle_xor(static_cast<int>(zero), mask);
        zero = zero && other != 0;
      }
      if (!k.hard[c]) continue;
      k.unit[c] = 0;
      k.close[c] = -1;
      k.hard[c] = !zero;
      if (zero && group() == 0)
        stage_half(stage + (2 * member() + c) * p.stage.used, p.s.format.norm_at, 0);
    }
  }
  return k;
}

// `table`: this lane's entry of the bins, its low bits inverted.
struct Nearest {
  float over;
  uint32_t word;
};
DEVICE_FUNCTION Nearest find_bin(float table, float slope, float offset, float x, float unit) {
  const float place = device::saturate(device::fma(x, slope, offset));
  const uint32_t index = device::bit_cast<uint32_t>(device::fma(place, kBins - 1, kWhole));
  const float word = device::lookup32(table, index);
  return {device::fma(x, unit, -word), device::bit_cast<uint32_t>(word)};
}
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
      // The code in inverted bits: one more where the element lies below the midpoint.
      uint32_t codes = 0;
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
      const bool near = nearest < k.close[c];
      if (!device::any(near)) continue;
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

// Near elements once more, in double, once the stage is written. False: too many, the keys of the
// wave take the definition's path.
DEVICE_FUNCTION bool settle_near(const Params& p, const CodeBins& bins, const Walk& w,
                                 NearList* list, uint8_t* stage) {
  device::sync_wave();
  const int count = list->count;
  if (count == 0) return true;
  const int64_t source = source_at(p.s.key, w);
  const bool full = count > kNearRoom;
  DEVICE_ROLLED
  for (int n = 0; n < count && !full; ++n) {
    const int vector = list->element[n] / 256, dim = list->element[n] % 256;
    const uint32_t code = exact_code(p.s, bins, device::shuffle(source, 4 * vector), dim);
    if (device::lane() == 0)
      patch_code(stage + vector * p.stage.used, p.s.format.key_bits, dim, code);
  }
  device::sync_wave();
  if (device::lane() == 0) list->count = 0;
  return !full;
}
// Of this lane's vector, as scale_eight tells of those of `member`.
DEVICE_FUNCTION bool is_hard(const KeyScales& k) {
  if (!device::any(k.hard[0] || k.hard[1])) return false;
  const int even = device::shuffle(static_cast<int>(k.hard[0]), group() / 2);
  const int odd = device::shuffle(static_cast<int>(k.hard[1]), group() / 2);
  return (group() % 2 ? odd : even) != 0;
}

}  // namespace tq::encode::sm_80
