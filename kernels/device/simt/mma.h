// SPDX-License-Identifier: Apache-2.0
// device::Mma on the host. The fragments lie over the lanes as they do in hardware: 32 lanes as
// NVIDIA's m16n8k16, 64 lanes as AMD's 16x16x16, so that a kernel which assumes one layout fails
// with the other.
#pragma once

namespace device {

struct bf16;
struct f16;

template <class T>
struct Mma {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>,
                "a matrix instruction takes bf16 or f16");
  static constexpr int M = 16, N = kWave == 32 ? 8 : 16, K = 16;

  template <class E, int kElements>
  struct Fragment {
    static constexpr int kSize = kElements;
    E get(int e) const { return v[check(e)]; }
    void set(int e, E value) { v[check(e)] = value; }
    E v[kElements] = {};

   private:
    static int check(int e) {
      if (e < 0 || e >= kElements) [[unlikely]]
        simt::fail(
            "element " + std::to_string(e) + " of a fragment of " + std::to_string(kElements),
            Site::current());
      return e;
    }
  };
  using A = Fragment<uint16_t, M * K / kWave>;
  using B = Fragment<uint16_t, K * N / kWave>;
  using C = Fragment<float, M * N / kWave>;

  static int a_row(int e) { return kWave == 32 ? lane() / 4 + e / 2 % 2 * 8 : lane() % 16; }
  static int a_k(int e) {
    return kWave == 32 ? lane() % 4 * 2 + e % 2 + e / 4 * 8 : lane() / 16 * 4 + e;
  }
  static int b_k(int e) {
    return kWave == 32 ? lane() % 4 * 2 + e % 2 + e / 2 * 8 : lane() / 16 * 4 + e;
  }
  static int b_col(int) { return kWave == 32 ? lane() / 4 : lane() % 16; }
  static int c_row(int e) { return kWave == 32 ? lane() / 4 + e / 2 * 8 : lane() / 16 * 4 + e; }
  static int c_col(int e) { return kWave == 32 ? lane() % 4 * 2 + e % 2 : lane() % 16; }

  static void multiply(C& c, const A& a, const B& b, Site site = Site::current()) {
    simt::multiply(std::is_same_v<T, bf16> ? simt::Half::bf16 : simt::Half::f16, c.v, a.v, b.v,
                   site);
  }
};

}  // namespace device
