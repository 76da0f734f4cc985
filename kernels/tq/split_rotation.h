// SPDX-License-Identifier: Apache-2.0
// y = x @ Pi^T on f16 matrix instructions with the accuracy of fp32. Pi / c, c its largest
// magnitude, is high + low in f16 (22 bits); x is exact in f16 (f16 and bf16 elements) or high +
// low too. Products are exact, sums fp32. A Pi whose magnitudes are all equal, a Hadamard matrix,
// is exact in its high part alone: the low products are left out when they are all zero.
//
// A lane owns 8 neighbouring elements of a vector and 8 neighbouring elements of its result: the
// order of k within a product is free, and columns of the result are the rows of Pi that we put
// there.
#pragma once

#include "device/nvidia.h"
#include "tq/rotation.h"

namespace tq {

inline constexpr int kSpan = 32;  // elements that the four lanes of a row own: 8 each
inline constexpr float kHighest = 256;  // of the high part, so that the low one is not denormal

struct alignas(16) Halves8 {
  uint32_t pair[4];  // of f16
};
struct alignas(16) Floats4 {
  float x[4];
};

// Rows of Pi as halves, in shared memory. Two rows that the lanes of one access read lie in the
// same banks unless the pitch says otherwise.
template <int D>
struct SplitPi {
  static constexpr int kChunks = D / 8;  // of a row
  static constexpr int kExchange = kChunks % 8 == 0 ? 4 : 0;
  static constexpr int kHalves8 = D * kChunks;  // of one part

  const Halves8* high;
  const Halves8* low;
  bool has_low;
  float unit;  // of a sum of products

  DEVICE_FUNCTION static int chunk_at(int row, int chunk) {
    return row * kChunks + (chunk ^ ((row & 1) * kExchange));
  }
};

// All threads of the block. Pi is contiguous in rows and aligned to 16 bytes. `scratch`: a shared
// float array of 32. Contains barriers; what is written is visible after the next one.
template <int D, class Scratch>
DEVICE_FUNCTION SplitPi<D> split_rotation(const Rotation& pi, Halves8* high, Halves8* low,
                                          Scratch& scratch) {
  using Pi = SplitPi<D>;
  float largest = 0;
  for (int i = device::thread(); i < Pi::kHalves8; i += device::threads()) {
    const auto* from = reinterpret_cast<const Floats4*>(
        pi.data + int64_t{i / Pi::kChunks} * pi.stride[0] + i % Pi::kChunks * 8);
    DEVICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const Floats4 four = from[h];
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) largest = device::max(largest, device::abs(four.x[e]));
    }
  }
  largest = device::block_max(largest, scratch);
  const float inverse = device::divide(1.0f, largest);
  uint32_t rest = 0;
  for (int i = device::thread(); i < Pi::kHalves8; i += device::threads()) {
    const int row = i / Pi::kChunks, chunk = i % Pi::kChunks;
    const auto* from =
        reinterpret_cast<const Floats4*>(pi.data + int64_t{row} * pi.stride[0] + chunk * 8);
    Halves8 h, l;
    DEVICE_UNROLL
    for (int i4 = 0; i4 < 2; ++i4) {
      const Floats4 four = from[i4];
      float q[4];
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) {
        // Division by a reciprocal and one correction: x / x is 1.
        const float guess = four.x[e] * inverse;
        q[e] = device::fma(device::fma(-guess, largest, four.x[e]), inverse, guess) * kHighest;
      }
      DEVICE_UNROLL
      for (int e = 0; e < 4; e += 2) {
        const uint32_t pair = device::pack_halves<device::f16>(q[e], q[e + 1]);
        h.pair[i4 * 2 + e / 2] = pair;
        const float low0 = q[e] - device::low_half<device::f16>(pair);
        const float low1 = q[e + 1] - device::high_half<device::f16>(pair);
        l.pair[i4 * 2 + e / 2] = device::pack_halves<device::f16>(low0, low1);
        rest |= l.pair[i4 * 2 + e / 2] & 0x7fff7fffu;
      }
    }
    high[Pi::chunk_at(row, chunk)] = h;
    low[Pi::chunk_at(row, chunk)] = l;
  }
  const bool has_low = device::block_max(rest != 0 ? 1.0f : 0.0f, scratch) != 0;
  return {high, low, has_low, largest / kHighest};
}

// Spans of Tiles x 16 vectors: x[i][span] are the pairs of row group + 8 i that this lane owns.
template <int D, int Tiles>
struct Vectors {
  uint32_t pair[2 * Tiles][D / kSpan][4];
};

// sum[i][e]: element kSpan span + 8 member + e of the rotated row group + 8 i, += x times a part.
template <int D, int Tiles>
DEVICE_FUNCTION void add_products(float (&sum)[Tiles][4][4], const Vectors<D, Tiles>& x,
                                  const Halves8* part, int span) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  DEVICE_UNROLL
  for (int from = 0; from < D / kSpan; ++from) {
    DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int row = span * kSpan + group / 2 * 8 + 2 * n + group % 2;
      const Halves8 b = part[SplitPi<D>::chunk_at(row, from * 4 + member)];
      DEVICE_UNROLL
      for (int step = 0; step < 2; ++step) {
        const uint32_t b_pair[2] = {b.pair[2 * step], b.pair[2 * step + 1]};
        DEVICE_UNROLL
        for (int tile = 0; tile < Tiles; ++tile) {
          const auto& upper = x.pair[2 * tile][from];
          const auto& lower = x.pair[2 * tile + 1][from];
          const uint32_t a[4] = {upper[2 * step], lower[2 * step], upper[2 * step + 1],
                                 lower[2 * step + 1]};
          device::multiply_16x8x16<device::f16>(sum[tile][n], a, b_pair);
        }
      }
    }
  }
}

// Element e of row group + 8 i in those sums.
template <int Tiles>
DEVICE_FUNCTION float sum_of(const float (&sum)[Tiles][4][4], int i, int e) {
  return sum[i / 2][e / 2][i % 2 * 2 + e % 2];
}

}  // namespace tq
