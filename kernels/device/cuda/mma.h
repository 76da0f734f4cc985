// SPDX-License-Identifier: Apache-2.0
// device::Mma on NVIDIA GPUs: mma.sync m16n8k16. A register holds two neighbouring elements, the
// lower k or column in its lower half; lane = 4 * group + member.
#pragma once

namespace device {

struct bf16;
struct f16;

// The instruction on registers, as device/nvidia.h offers it.
template <class T>
DEVICE_FUNCTION void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <class T>
struct Mma {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>,
                "a matrix instruction takes bf16 or f16");
  static constexpr int M = 16, N = 8, K = 16;

  template <int kRegisters>
  struct Halves {
    static constexpr int kSize = 2 * kRegisters;
    DEVICE_FUNCTION uint16_t get(int e) const {
      return static_cast<uint16_t>(r[e / 2] >> (16 * (e % 2)));
    }
    DEVICE_FUNCTION void set(int e, uint16_t bits) {
      const int shift = 16 * (e % 2);
      r[e / 2] = (r[e / 2] & ~(0xffffu << shift)) | (static_cast<uint32_t>(bits) << shift);
    }
    uint32_t r[kRegisters] = {};
  };
  using A = Halves<4>;
  using B = Halves<2>;
  struct C {
    static constexpr int kSize = 4;
    DEVICE_FUNCTION float get(int e) const { return v[e]; }
    DEVICE_FUNCTION void set(int e, float value) { v[e] = value; }
    float v[4] = {};
  };

  // Registers of A: rows 0-7, rows 8-15, then the same for k 8-15. Of B: k 0-7, then k 8-15. Of C:
  // rows 0-7, 8-15.
  DEVICE_FUNCTION static int a_row(int e) { return lane() / 4 + (e / 2 % 2) * 8; }
  DEVICE_FUNCTION static int a_k(int e) { return lane() % 4 * 2 + e % 2 + e / 4 * 8; }
  DEVICE_FUNCTION static int b_k(int e) { return lane() % 4 * 2 + e % 2 + e / 2 * 8; }
  DEVICE_FUNCTION static int b_col(int) { return lane() / 4; }
  DEVICE_FUNCTION static int c_row(int e) { return lane() / 4 + e / 2 * 8; }
  DEVICE_FUNCTION static int c_col(int e) { return lane() % 4 * 2 + e % 2; }

  DEVICE_FUNCTION static void multiply(C& c, const A& a, const B& b) {
    multiply_16x8x16<T>(c.v, a.r, b.r);
  }
};

}  // namespace device
