// SPDX-License-Identifier: Apache-2.0
// y = x @ Pi^T on matrix instructions with the accuracy of fp32. Pi / c, c its largest magnitude,
// is high + low in the vectors' own type T: 22 bits in f16, 16 in bf16; the vectors are taken as
// they are. Products are exact, sums fp32. A Pi whose magnitudes are all equal, a Hadamard matrix,
// is exact in its high part alone: the low products are left out when they are all zero.
#pragma once

#include "device/nvidia.h"
#include "tq/rotation.h"

namespace tq {

inline constexpr float kHighest = 256;  // of the high part, so that f16's low one is not denormal

struct Halves8 {
  uint32_t pair[4];
};
struct Floats4 {
  float x[4];
};

// Bound of |y - exact y| / |x|: D / 16 sums (with both parts D / 8) of at most |x| each, rounded or
// cut to 2^-23, and what the parts leave out.
template <class T, int D>
inline constexpr float kRotationError = D * 0x1p-26f +
                                        (std::is_same_v<T, device::f16> ? 0x1p-22f : 0x1p-17f);

// Rows of Pi as halves, in shared memory. Two rows that the lanes of one access read would lie in
// the same banks, but for the exchange.
template <int D>
struct SplitPi {
  static constexpr int kChunks = D / 8;  // of a row
  static constexpr int kExchange = kChunks % 8 == 0 ? 4 : 0;
  static constexpr int kPart = D * kChunks;  // Halves8 of a part

  const Halves8* parts;  // [2][kPart]: high, low
  int count;             // of parts in use
  float unit;            // of a sum of products

  DEVICE_FUNCTION static int chunk_at(int row, int chunk) {
    return row * kChunks + (chunk ^ ((row & 1) * kExchange));
  }
};

// Starts to copy Pi, whose rows are contiguous and aligned to 16 bytes, to shared memory. All
// threads of the block; the caller commits and waits.
template <int D>
DEVICE_FUNCTION void fetch_rotation(const Rotation& pi, Floats4* to) {
  constexpr int kPieces = D / 4;  // of a row
  DEVICE_ROLLED
  for (int i = device::thread(); i < D * kPieces; i += device::threads())
    device::copy_async16(to + i, pi.data + (i / kPieces) * pi.stride[0] + i % kPieces * 4, true);
}

// All threads of the block; what was fetched is visible to all of them. `scratch`: a shared float
// array of 32. Contains barriers; what is written is visible when it returns.
template <class T, int D, class Scratch>
DEVICE_FUNCTION SplitPi<D> split_rotation(const Floats4* fetched, Halves8* parts,
                                          Scratch& scratch) {
  using Pi = SplitPi<D>;
  float largest = 0;
  DEVICE_ROLLED
  for (int i = device::thread(); i < D * D / 4; i += device::threads()) {
    const Floats4 four = device::load16<Floats4>(fetched + i);
    DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) largest = device::max(largest, device::abs(four.x[e]));
  }
  largest = device::block_max(largest, scratch);
  const float inverse = device::divide(1.0f, largest);
  float rest = 0;
  auto* pairs = reinterpret_cast<uint32_t*>(parts);
  DEVICE_ROLLED
  for (int i = device::thread(); i < D * D / 4; i += device::threads()) {
    const int row = i / (D / 4), chunk = i % (D / 4) / 2;
    const Floats4 four = device::load16<Floats4>(fetched + i);
    DEVICE_UNROLL
    for (int n = 0; n < 2; ++n) {
      float q[2];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        // Division by a reciprocal and one correction: x / x is 1.
        const float x = four.x[2 * n + e], guess = x * inverse;
        q[e] = device::fma(device::fma(-guess, largest, x), inverse, guess) * kHighest;
      }
      const uint32_t high = device::pack_halves<T>(q[0], q[1]);
      const float low0 = q[0] - device::low_half<T>(high), low1 = q[1] - device::high_half<T>(high);
      const int at = Pi::chunk_at(row, chunk) * 4 + i % 2 * 2 + n;
      pairs[at] = high;
      pairs[Pi::kPart * 4 + at] = device::pack_halves<T>(low0, low1);
      rest = device::max(rest, device::max(device::abs(low0), device::abs(low1)));
    }
  }
  rest = device::block_max(rest, scratch);
  return {parts, rest == 0 ? 1 : 2, largest / kHighest};
}

// 32 vectors as fragments: row group + 8 i, halves 8 (4 from + member) ... + 7. A lane owns 8
// neighbouring elements: the order of k within a product is free.
template <int D>
struct Vectors32 {
  Halves8 of[4][D / 32];
};

// sum[tile][n]: rows of tile 16 tile, elements [first + 8 n, + 8) of the rotated vectors.
template <class T, int D>
DEVICE_FUNCTION void add_products(float (&sum)[2][4][4], const Vectors32<D>& x, const Halves8* part,
                                  int first) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  DEVICE_UNROLL
  for (int from = 0; from < D / 32; ++from) {
    DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      const Halves8 b = device::load16<Halves8>(
          part + SplitPi<D>::chunk_at(first + 8 * n + group, from * 4 + member));
      DEVICE_UNROLL
      for (int step = 0; step < 2; ++step) {
        const uint32_t b_pair[2] = {b.pair[2 * step], b.pair[2 * step + 1]};
        DEVICE_UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          const Halves8 &upper = x.of[2 * tile][from], &lower = x.of[2 * tile + 1][from];
          const uint32_t a[4] = {upper.pair[2 * step], lower.pair[2 * step],
                                 upper.pair[2 * step + 1], lower.pair[2 * step + 1]};
          device::multiply_16x8x16<T>(sum[tile][n], a, b_pair);
        }
      }
    }
  }
}

// The squares of the 32 vectors to squares[0 ... 31], in shared memory: the diagonal of X X^T,
// whose B fragments are the registers of the A fragments.
template <class T, int D>
DEVICE_FUNCTION void store_squares(const Vectors32<D>& x, float* squares) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  float sum[4][4] = {};  // of rows group + 8 i with rows 8 i ... + 7
  DEVICE_UNROLL
  for (int from = 0; from < D / 32; ++from) DEVICE_UNROLL
  for (int step = 0; step < 2; ++step) DEVICE_UNROLL
  for (int tile = 0; tile < 2; ++tile) {
    const Halves8 &upper = x.of[2 * tile][from], &lower = x.of[2 * tile + 1][from];
    const uint32_t a[4] = {upper.pair[2 * step], lower.pair[2 * step], upper.pair[2 * step + 1],
                           lower.pair[2 * step + 1]};
    const uint32_t b_upper[2] = {a[0], a[2]}, b_lower[2] = {a[1], a[3]};
    device::multiply_16x8x16<T>(sum[2 * tile], a, b_upper);
    device::multiply_16x8x16<T>(sum[2 * tile + 1], a, b_lower);
  }
  if (member != group / 2) return;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int at = i % 2 * 2;  // rows below 8 of a tile are in the first two of a fragment
    squares[group + 8 * i] = group % 2 ? sum[i][at + 1] : sum[i][at];
  }
}

}  // namespace tq
