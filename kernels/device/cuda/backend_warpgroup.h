// SPDX-License-Identifier: Apache-2.0
// device/warpgroup.h on NVIDIA GPUs of sm_90a. Compiled for others, the products trap.
#pragma once

namespace device {

// Of the rows of a tile from `further` bytes behind its begin on: the distances of its column
// blocks and of eight rows, the 128-byte swizzle, and where it lies, in 16 bytes. The constant is
// added last, to 32 bits: anything more holds up the products, which are issued 32 cycles apart.
DEVICE_FUNCTION uint64_t tile_descriptor(SharedAddress tile, int further) {
  const uint32_t low = (tile >> 4 | uint32_t{kTileBlockBytes >> 4} << 16) + uint32_t(further >> 4);
  return uint64_t{1u << 30 | 1024 >> 4} << 32 | low;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEVICE_FUNCTION void fence_async_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }
DEVICE_FUNCTION void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE_FUNCTION void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kOpen, int kSize>
DEVICE_FUNCTION void products_wait(float (&d)[kSize]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
  DEVICE_UNROLL
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");  // no use of d moves up
}

// clang-format off
#define DEVICE_R10(n) "%" #n "0,%" #n "1,%" #n "2,%" #n "3,%" #n "4,%" #n "5,%" #n "6,%" #n "7,%" #n "8,%" #n "9"
#define DEVICE_F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define DEVICE_F16(i) DEVICE_F4(i), DEVICE_F4((i) + 4), DEVICE_F4((i) + 8), DEVICE_F4((i) + 12)
#define DEVICE_PRODUCT_64(type) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," \
    DEVICE_R10(1) "," DEVICE_R10(2) ",%30,%31}, %32, %33, p, 1, 1, 0, 0; }" \
    : DEVICE_F16(0), DEVICE_F16(16) : "l"(a), "l"(b), "n"(kAdd ? 1 : 0))
#define DEVICE_PRODUCT_256(type) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," \
    DEVICE_R10(1) "," DEVICE_R10(2) "," DEVICE_R10(3) "," DEVICE_R10(4) "," DEVICE_R10(5) "," DEVICE_R10(6) "," \
    DEVICE_R10(7) "," DEVICE_R10(8) "," DEVICE_R10(9) "," DEVICE_R10(10) "," DEVICE_R10(11) \
    ",%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, p, 1, 1, 1; }" \
    : DEVICE_F16(0), DEVICE_F16(16), DEVICE_F16(32), DEVICE_F16(48), DEVICE_F16(64), DEVICE_F16(80), \
      DEVICE_F16(96), DEVICE_F16(112) : "r"(a[4 * k]), "r"(a[4 * k + 1]), "r"(a[4 * k + 2]), "r"(a[4 * k + 3]), "l"(b))
// clang-format on

template <class T, bool kAdd>
DEVICE_FUNCTION void multiply_64x64x16(float (&d)[32], SharedAddress a_tile, SharedAddress b_tile,
                                       int k) {
  const int further = k / 4 * kTileBlockBytes + k % 4 * 32;
  const uint64_t a = tile_descriptor(a_tile, further), b = tile_descriptor(b_tile, further);
  if constexpr (std::is_same_v<T, bf16>)
    DEVICE_PRODUCT_64("bf16");
  else
    DEVICE_PRODUCT_64("f16");
}
template <class T>
DEVICE_FUNCTION void multiply_64x256x16(float (&d)[128], const uint32_t (&a)[16],
                                        SharedAddress b_tile, int k) {
  const uint64_t b = tile_descriptor(b_tile, k * 16 * 128);
  if constexpr (std::is_same_v<T, bf16>)
    DEVICE_PRODUCT_256("bf16");
  else
    DEVICE_PRODUCT_256("f16");
}
#undef DEVICE_R10
#undef DEVICE_F4
#undef DEVICE_F16
#undef DEVICE_PRODUCT_64
#undef DEVICE_PRODUCT_256
#else
DEVICE_FUNCTION void fence_async_copies() { __trap(); }
DEVICE_FUNCTION void products_begin() { __trap(); }
DEVICE_FUNCTION void products_commit() { __trap(); }
template <int kOpen, int kSize>
DEVICE_FUNCTION void products_wait(float (&)[kSize]) {
  __trap();
}
template <class T, bool kAdd>
DEVICE_FUNCTION void multiply_64x64x16(float (&)[32], SharedAddress, SharedAddress, int) {
  __trap();
}
template <class T>
DEVICE_FUNCTION void multiply_64x256x16(float (&)[128], const uint32_t (&)[16], SharedAddress,
                                        int) {
  __trap();
}
#endif

}  // namespace device
