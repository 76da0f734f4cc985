// SPDX-License-Identifier: Apache-2.0
// y = x @ Pi^T of eight vectors of a wave, by matrix instructions with Pi (or H) as their first
// factor and the vectors, as they lie in registers, as the second. Lanes end with 8 neighbouring
// elements of two vectors, D / 64 times: whole bytes of codes, and no exchange.
//
// Pi = c H, H the Sylvester-Hadamard matrix: an element's index is taken apart. Four bits are
// rotated by one instruction a chunk of 16 elements, whose products are exact; the others lie in
// the registers of a lane and take additions.
//
//   index         bit 0   1, 2   3, 4     5 ...   the highest
//   of an input   half    pair   member   load    load
//   of a sum      row 8   pair   group    load    group
//
// Any other Pi / c, c its largest magnitude, is high + low in the vectors' own type: 22 bits in
// f16, 16 in bf16.
#pragma once

#include "tq/encode_eight.h"

namespace tq::encode::sm_80 {

// Bounds of |y - exact y| / |x|. Tensor cores cut products and sums to 2^-23 of the largest.
// H: twice eight products and a sum a chunk, which comes to 8.5 * 2^-23 over all chunks, then
// roundings of the additions; smaller parts of fp32 add less than 2^-7 of that.
inline constexpr float kHadamardError = 10.5f * 0x1p-23f;
// Norm and scaling relative to the midpoints: 19 roundings of squares, the reciprocal root, and the
// error above should it point the same way in all elements.
inline constexpr float kHadamardScaling = 0x1.8p-19f;
// Others: D / 16 sums of both parts, of at most |x| each, and what the parts leave out.
template <class T, int D>
inline constexpr float kMatrixError = D * 0x1p-26f +
                                      (std::is_same_v<T, device::f16> ? 0x1p-22f : 0x1p-17f);
inline constexpr float kMatrixScaling = 0x1p-18f;

// Element e of the 8 of load t, vector 2 * member + c.
template <int D>
struct Sums {
  static constexpr int kLoads = D / 64;
  float of[kLoads][4][4];
  DEVICE_FUNCTION float get(int t, int c, int e) const { return of[t][e / 2][e % 2 * 2 + c]; }
  // The group of 8 elements, of D / 8.
  DEVICE_FUNCTION static int piece(int t, int of_group = group()) {
    return (of_group & 3) + 4 * t + 4 * kLoads * (of_group >> 2);
  }
};

// This thread's share of Pi, some pieces of a column at a time: loaded long before it is looked at.
template <int D, int kThreads>
struct PiPieces {
  static constexpr int kPieces = D / 4;             // of a row
  static constexpr int kRows = kThreads / kPieces;  // from a piece to the next one
  static_assert(kRows % 4 == 0 && (kRows & (kRows - 1)) == 0);
  static constexpr int kBatch = D / kRows < 8 ? D / kRows : 8;
  Floats4 x[kBatch];
  DEVICE_FUNCTION static int row() { return device::thread() / kPieces; }
  DEVICE_FUNCTION static int column() { return device::thread() % kPieces * 4; }
  DEVICE_FUNCTION static uint32_t parity(uint32_t bits) {
    DEVICE_UNROLL
    for (int by = 8; by > 0; by /= 2) bits ^= bits >> by;
    return bits & 1;
  }
  DEVICE_FUNCTION void load(const Rotation& pi, int first) {
    const float* from = pi.data + (first + row()) * pi.stride[0] + column();
    DEVICE_UNROLL
    for (int n = 0; n < kBatch; ++n)
      x[n] = device::load16<Floats4>(from + n * kRows * pi.stride[0]);
  }
  // Not 0: an element of the batch at row `first` differs from magnitude times H. The parity of
  // (a + b) & c is the sum of both, a and b having no bit in common.
  DEVICE_FUNCTION uint32_t differ(uint32_t magnitude, int first) const {
    const uint32_t odd = parity((first + row()) & column());
    const uint32_t low = row() & 1, high = row() >> 1 & 1;
    const uint32_t wanted[4] = {magnitude ^ odd << 31, magnitude ^ (odd ^ low) << 31,
                                magnitude ^ (odd ^ high) << 31,
                                magnitude ^ (odd ^ low ^ high) << 31};
    uint32_t other = 0;
    DEVICE_UNROLL
    for (int n = 0; n < kBatch; ++n) {
      uint32_t sign = 0;
      DEVICE_UNROLL
      for (int bit = 1; bit < kBatch; bit *= 2)
        if (n & bit) sign ^= (column() & (bit * kRows)) ? 0x80000000u : 0;
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) other |= device::bit_cast<uint32_t>(x[n].x[e]) ^ wanted[e] ^ sign;
    }
    return other;
  }
};
// False: this thread's share, whose first pieces are loaded, differs.
template <int D, int kThreads>
DEVICE_FUNCTION bool may_be_hadamard(const Rotation& pi, PiPieces<D, kThreads>& pieces,
                                     float magnitude) {
  constexpr int kStep = PiPieces<D, kThreads>::kBatch * PiPieces<D, kThreads>::kRows;
  const uint32_t bits = device::bit_cast<uint32_t>(magnitude);
  uint32_t other = bits >= 0x7f800000u || bits < 0x00800000u;  // negative, not finite, tiny
  DEVICE_ROLLED
  for (int first = 0;;) {
    other |= pieces.differ(bits, first);
    first += kStep;
    if (first >= D) break;
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

DEVICE_FUNCTION void butterfly(float (&a)[4], float (&b)[4]) {
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float sum = a[i] + b[i];
    b[i] = a[i] - b[i];
    a[i] = sum;
  }
}
template <class T, int D>
DEVICE_FUNCTION void rotate_by_hadamard(const uint32_t (&a)[4], const Piece<T> (&x)[D / 32],
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

// Any other Pi, in shared memory as first factors: [part][t][q][chunk][lane]. Rows 16 (4 t + q) ...
// of the factors are such elements that the sums lie as above.
inline constexpr float kHighest = 256;  // of the high part, so that f16's low one is not denormal
struct MatrixPi {
  Halves8* factors;
  int parts;
  float unit;  // of a sum of products
};
template <int D>
inline constexpr int kFactors = D / 16 * (D / 16) * device::kWave;  // of a part

// All threads of the block. `scratch`: a shared float array of 32. Contains barriers.
template <class T, int D, class Scratch>
DEVICE_FUNCTION MatrixPi split_matrix(const Rotation& pi, Halves8* factors, Scratch& scratch) {
  constexpr int kLoads = D / 64;
  float largest = 0;
  DEVICE_ROLLED
  for (int i = device::thread(); i < D * D / 4; i += device::threads()) {
    const Floats4 four =
        device::load16<Floats4>(pi.data + i / (D / 4) * pi.stride[0] + i % (D / 4) * 4);
    DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) largest = device::max(largest, device::abs(four.x[e]));
  }
  largest = device::block_max(largest, scratch);
  float rest = 0;
  DEVICE_ROLLED
  for (int i = device::thread(); i < kFactors<D>; i += device::threads()) {
    const int lane = i % device::kWave, chunk = i / device::kWave % (D / 16), tile = i / device::kWave / (D / 16);
    DEVICE_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int row = Sums<D>::piece(tile / 4, lane / 4) * kGroup + tile % 4 * 2 + r % 2;
      const int column = 32 * (chunk / 4 + r / 2 * kLoads) + 8 * (lane % 4) + 2 * (chunk % 4);
      float q[2];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e)
        q[e] = device::divide(pi.data[row * pi.stride[0] + column + e], largest) * kHighest;
      const uint32_t high = device::pack_halves<T>(q[0], q[1]);
      const float low0 = q[0] - device::low_half<T>(high), low1 = q[1] - device::high_half<T>(high);
      factors[i].pair[r] = high;
      factors[kFactors<D> + i].pair[r] = device::pack_halves<T>(low0, low1);
      rest = device::max(rest, device::max(device::abs(low0), device::abs(low1)));
    }
  }
  rest = device::block_max(rest, scratch);
  return {factors, rest == 0 ? 1 : 2, largest / kHighest};
}
template <class T, int D>
DEVICE_FUNCTION void rotate_by_matrix(const MatrixPi& pi, const Halves8 (&x)[D / 32],
                                      Sums<D>& sums) {
  constexpr int kLoads = D / 64;
  DEVICE_UNROLL
  for (int t = 0; t < kLoads; ++t) DEVICE_UNROLL
  for (int q = 0; q < 4; ++q) DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) sums.of[t][q][i] = 0;
  const Halves8* of_lane = pi.factors + device::lane();
  DEVICE_ROLLED
  for (int part = 0; part < pi.parts; ++part) DEVICE_UNROLL
  for (int t = 0; t < kLoads; ++t) DEVICE_UNROLL
  for (int q = 0; q < 4; ++q) DEVICE_UNROLL
  for (int chunk = 0; chunk < D / 16; ++chunk) {
    const int at = ((part * 4 * kLoads + 4 * t + q) * (D / 16) + chunk) * device::kWave;
    const Halves8 a = device::load16<Halves8>(of_lane + at);
    add_chunk<T>(a.pair, x[chunk / 4], x[chunk / 4 + kLoads], chunk % 4, sums.of[t][q]);
  }
}

}  // namespace tq::encode::sm_80
