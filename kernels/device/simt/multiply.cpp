// SPDX-License-Identifier: Apache-2.0
#include "multiply.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace simt {
namespace {

// Both without branches, so that rows are converted by vector instructions.
float from_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
float from_f16(uint16_t x) {
  const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fff) << 13;
  const float scaled =
      std::bit_cast<float>(magnitude) * 0x1p112f;  // moves the exponent's bias, denormals too
  const uint32_t special = magnitude >= 0x7c00u << 13 ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special |
                              static_cast<uint32_t>(x & 0x8000) << 16);
}

template <int kRows, int kColumns>
struct Matrix {
  alignas(64) float at[kRows][kColumns];
};

// Four columns at a time, by the vector types of g++ and clang: left to itself, g++ 12 does not
// vectorize this.
using Four = float __attribute__((vector_size(16)));

// Each step's sum rounded, in the order of k.
void multiply_rounded(Matrix<16, 16>& c, const Matrix<16, 16>& a, const Matrix<16, 16>& b) {
  for (int i = 0; i < 16; ++i) {
    Four* const out = reinterpret_cast<Four*>(c.at[i]);
    Four row[4] = {out[0], out[1], out[2], out[3]};
    for (int k = 0; k < 16; ++k) {
      const float x = a.at[i][k];
      const Four factor{x, x, x, x};
      const Four* const in = reinterpret_cast<const Four*>(b.at[k]);
      for (int j = 0; j < 4; ++j) row[j] += factor * in[j];
    }
    for (int j = 0; j < 4; ++j) out[j] = row[j];
  }
}

// As NVIDIA's tensor cores add, from sm_80 on and at their worst: products are exact; they and the
// sum so far are cut (towards zero) below 2^-24 of the largest of them, added exactly, and the
// result is cut to fp32 (an H200 keeps one bit more: 1 - 1 + 2^-25 is 2^-25 there, 1 - 1 + 2^-26 is
// 0). A product counts by its factors' exponents, and a denormal f16 has that of 2^-14: beside a
// code that is 2^-24 ten bits more are cut. Found by random cases of tq.decode on an H200: sums
// that are rounded hide what that loses. `normal`: the least normal number of the factors' format.
void multiply_cut(Matrix<16, 8>& c, const Matrix<16, 16>& a, const Matrix<16, 8>& b, float normal) {
  constexpr int kTerms = 17, kColumns = 8;
  constexpr float kLeast = 0x1p-100f;  // what is below 2^-123 then does not count
  const auto size = [&](float x) { return x == 0 ? 0 : std::max(std::fabs(x), normal); };
  Matrix<16, 8> b_size;
  for (int k = 0; k < 16; ++k)
    for (int j = 0; j < kColumns; ++j) b_size.at[k][j] = size(b.at[k][j]);
  for (int i = 0; i < 16; ++i) {
    alignas(64) float term[kTerms][kColumns], largest[kColumns], down[kColumns];
    alignas(64) int32_t sum[kColumns] = {};
    for (int j = 0; j < kColumns; ++j) term[16][j] = c.at[i][j], largest[j] = kLeast;
    for (int k = 0; k < 16; ++k) {
      const float a_size = size(a.at[i][k]);
      for (int j = 0; j < kColumns; ++j) {
        term[k][j] = a.at[i][k] * b.at[k][j];
        largest[j] = std::max(largest[j], a_size * b_size.at[k][j]);
      }
    }
    bool finite = true;
    for (int k = 0; k < kTerms; ++k)
      for (int j = 0; j < kColumns; ++j) {
        largest[j] = std::max(largest[j], std::fabs(term[k][j]));
        finite &= std::fabs(term[k][j]) < INFINITY;
      }
    if (!finite) {
      for (int k = 0; k < 16; ++k)
        for (int j = 0; j < kColumns; ++j) c.at[i][j] += term[k][j];
      continue;
    }
    for (int j = 0; j < kColumns; ++j)  // 2^24 / the power of two below the largest
      down[j] =
          std::bit_cast<float>((278u << 23) - (std::bit_cast<uint32_t>(largest[j]) & 0x7f800000u));
    for (int k = 0; k < kTerms; ++k)
      for (int j = 0; j < kColumns; ++j) sum[j] += static_cast<int32_t>(term[k][j] * down[j]);
    for (int j = 0; j < kColumns; ++j) {
      const int32_t magnitude = std::abs(sum[j]);
      const int more =
          std::max(0, static_cast<int>(std::bit_width(static_cast<uint32_t>(magnitude))) - 24);
      const float cut = static_cast<float>(magnitude >> more << more);
      c.at[i][j] = std::copysign(cut, static_cast<float>(sum[j])) / down[j];
    }
  }
}

template <class Load>
void multiply32(Load load, float normal, float* const* c, const uint16_t* const* a,
                const uint16_t* const* b) {
  Matrix<16, 16> ma;
  Matrix<16, 8> mb, mc;
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (int e = 0; e < 8; ++e)
      ma.at[group + e / 2 % 2 * 8][pair + e % 2 + e / 4 * 8] = load(a[l][e]);
    for (int e = 0; e < 4; ++e) mb.at[pair + e % 2 + e / 2 * 8][group] = load(b[l][e]);
    for (int e = 0; e < 4; ++e) mc.at[group + e / 2 * 8][pair + e % 2] = c[l][e];
  }
  multiply_cut(mc, ma, mb, normal);
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < 4; ++e) c[l][e] = mc.at[l / 4 + e / 2 * 8][l % 4 * 2 + e % 2];
}

template <class Load>
void multiply64(Load load, float* const* c, const uint16_t* const* a, const uint16_t* const* b) {
  Matrix<16, 16> ma, mb, mc;
  for (int l = 0; l < 64; ++l)
    for (int e = 0; e < 4; ++e) {
      ma.at[l % 16][l / 16 * 4 + e] = load(a[l][e]);
      mb.at[l / 16 * 4 + e][l % 16] = load(b[l][e]);
      mc.at[l / 16 * 4 + e][l % 16] = c[l][e];
    }
  multiply_rounded(mc, ma, mb);
  for (int l = 0; l < 64; ++l)
    for (int e = 0; e < 4; ++e) c[l][e] = mc.at[l / 16 * 4 + e][l % 16];
}

}  // namespace

void multiply_fragments(Half type, int wave, float* const* c, const uint16_t* const* a,
                        const uint16_t* const* b) {
  const auto with = [&](auto load, float normal) {
    wave == 32 ? multiply32(load, normal, c, a, b) : multiply64(load, c, a, b);
  };
  if (type == Half::bf16)
    with([](uint16_t x) { return from_bf16(x); }, 0x1p-126f);
  else
    with([](uint16_t x) { return from_f16(x); }, 0x1p-14f);
}

void multiply_byte_fragments(int32_t* const* c, const uint32_t* const* a,
                             const uint32_t* const* b) {
  int8_t ma[16][32], mb[8][32];
  const auto byte = [](uint32_t word, int i) { return static_cast<int8_t>(word >> (8 * i)); };
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, first = l % 4 * 4;
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < 4; ++r) ma[group + r % 2 * 8][first + i + r / 2 * 16] = byte(a[l][r], i);
      for (int r = 0; r < 2; ++r) mb[group][first + i + r * 16] = byte(b[l][r], i);
    }
  }
  for (int l = 0; l < 32; ++l)
    for (int e = 0; e < 4; ++e) {
      int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += ma[l / 4 + e / 2 * 8][k] * mb[l % 4 * 2 + e % 2][k];
      c[l][e] += sum;
    }
}

}  // namespace simt
