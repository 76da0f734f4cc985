// SPDX-License-Identifier: Apache-2.0
#include "multiply.h"

#include <bit>

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

template <int N>
void multiply_add(Matrix<16, N>& c, const Matrix<16, 16>& a, const Matrix<16, N>& b) {
  for (int i = 0; i < 16; ++i) {
    Four* const out = reinterpret_cast<Four*>(c.at[i]);
    Four row[N / 4];
    for (int j = 0; j < N / 4; ++j) row[j] = out[j];
    for (int k = 0; k < 16; ++k) {
      const float x = a.at[i][k];
      const Four factor{x, x, x, x};
      const Four* const in = reinterpret_cast<const Four*>(b.at[k]);
      for (int j = 0; j < N / 4; ++j) row[j] += factor * in[j];
    }
    for (int j = 0; j < N / 4; ++j) out[j] = row[j];
  }
}

template <class Load>
void multiply32(Load load, float* const* c, const uint16_t* const* a, const uint16_t* const* b) {
  Matrix<16, 16> ma;
  Matrix<16, 8> mb, mc;
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (int e = 0; e < 8; ++e)
      ma.at[group + e / 2 % 2 * 8][pair + e % 2 + e / 4 * 8] = load(a[l][e]);
    for (int e = 0; e < 4; ++e) mb.at[pair + e % 2 + e / 2 * 8][group] = load(b[l][e]);
    for (int e = 0; e < 4; ++e) mc.at[group + e / 2 * 8][pair + e % 2] = c[l][e];
  }
  multiply_add(mc, ma, mb);
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
  multiply_add(mc, ma, mb);
  for (int l = 0; l < 64; ++l)
    for (int e = 0; e < 4; ++e) c[l][e] = mc.at[l / 16 * 4 + e][l % 16];
}

}  // namespace

void multiply_fragments(Half type, int wave, float* const* c, const uint16_t* const* a,
                        const uint16_t* const* b) {
  const auto with = [&](auto load) {
    wave == 32 ? multiply32(load, c, a, b) : multiply64(load, c, a, b);
  };
  if (type == Half::bf16)
    with([](uint16_t x) { return from_bf16(x); });
  else
    with([](uint16_t x) { return from_f16(x); });
}

}  // namespace simt
