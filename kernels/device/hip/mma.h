// SPDX-License-Identifier: Apache-2.0
// device::Mma on AMD GPUs: MFMA 16x16x16 on 64 lanes. A lane holds four neighbouring k of one row
// of A (of one column of B), and four neighbouring rows of one column of C; lane = 16 * group +
// member.
#pragma once

namespace device {

struct bf16;
struct f16;

template <class T>
struct Mma {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>,
                "a matrix instruction takes bf16 or f16");
  static constexpr int M = 16, N = 16, K = 16;

  struct Halves {
    static constexpr int kSize = 4;
    DEVICE_FUNCTION uint16_t get(int e) const { return h[e]; }
    DEVICE_FUNCTION void set(int e, uint16_t bits) { h[e] = bits; }
    uint16_t h[4] = {};
  };
  struct A : Halves {};
  struct B : Halves {};
  struct C {
    static constexpr int kSize = 4;
    DEVICE_FUNCTION float get(int e) const { return v[e]; }
    DEVICE_FUNCTION void set(int e, float value) { v[e] = value; }
    float v[4] = {};
  };

  DEVICE_FUNCTION static int a_row(int) { return lane() % 16; }
  DEVICE_FUNCTION static int a_k(int e) { return lane() / 16 * 4 + e; }
  DEVICE_FUNCTION static int b_k(int e) { return lane() / 16 * 4 + e; }
  DEVICE_FUNCTION static int b_col(int) { return lane() % 16; }
  DEVICE_FUNCTION static int c_row(int e) { return lane() / 16 * 4 + e; }
  DEVICE_FUNCTION static int c_col(int) { return lane() % 16; }

  DEVICE_FUNCTION static void multiply(C& c, const A& a, const B& b) {
    typedef float Floats __attribute__((ext_vector_type(4)));
    typedef short Shorts __attribute__((ext_vector_type(4)));
    typedef _Float16 Float16s __attribute__((ext_vector_type(4)));
    Floats sum = bit_cast<Floats>(c.v);
    if constexpr (std::is_same_v<T, bf16>)
      sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bit_cast<Shorts>(a.h), bit_cast<Shorts>(b.h),
                                                      sum, 0, 0, 0);
    else
      sum = __builtin_amdgcn_mfma_f32_16x16x16f16(bit_cast<Float16s>(a.h), bit_cast<Float16s>(b.h),
                                                  sum, 0, 0, 0);
    for (int e = 0; e < 4; ++e) c.v[e] = sum[e];
  }
};

}  // namespace device
