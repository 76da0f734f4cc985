// SPDX-License-Identifier: Apache-2.0
// device/nvidia.h on NVIDIA GPUs.
#pragma once

namespace device {

// Barriers.
DEVICE_FUNCTION bool sync_block_any(bool b) { return __syncthreads_or(b) != 0; }
DEVICE_FUNCTION void fence_acquire_release() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Matrices.
DEVICE_FUNCTION void multiply_16x8x8(float (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}
DEVICE_FUNCTION void multiply_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4],
                                      const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
using SharedAddress = uint32_t;
DEVICE_FUNCTION SharedAddress shared_address(const void* shared) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(shared));
}
DEVICE_FUNCTION void load_matrices(uint32_t (&r)[4], const void* shared, int at = 0) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared) + at)
               : "memory");
}
DEVICE_FUNCTION void load_matrices_transposed(uint32_t (&r)[4], const void* shared, int at = 0) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared) + at)
               : "memory");
}
DEVICE_FUNCTION uint32_t transpose_8x8(uint32_t r) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(r));
  return out;
}

// Bits.
DEVICE_FUNCTION uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}
DEVICE_FUNCTION uint32_t funnel_shift_right(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, shift);
}
DEVICE_FUNCTION uint32_t look_up_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t out;  // __byte_perm() masks the selector first
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
}
// c and the products of four signed bytes.
DEVICE_FUNCTION int32_t dot_bytes(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
template <class T>
DEVICE_FUNCTION T lookup32(T v, uint32_t index) {  // the instruction looks at 5 bits
  return bit_cast<T>(__shfl_sync(kAllLanes, bit_cast<unsigned>(v), static_cast<int>(index)));
}

// Pairs of halves.
template <class T>
DEVICE_FUNCTION uint32_t pack_halves(float low, float high) {
  uint32_t out;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <class T>
DEVICE_FUNCTION float low_half(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) return __uint_as_float(pair << 16);
  float out;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(out) : "r"(pair));
  return out;
}
template <class T>
DEVICE_FUNCTION float high_half(uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) return __uint_as_float(pair & 0xffff0000u);
  float out;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(out) : "r"(pair));
  return out;
}
DEVICE_FUNCTION uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Two e4m3fn bytes as f16, exactly; a NaN byte gives a NaN.
DEVICE_FUNCTION uint32_t e4m3fn_to_f16x2(uint32_t bytes) {
  uint32_t out;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(out) : "r"(bytes));
#else
  const uint32_t x = __byte_perm(bytes, 0, 0x1404);  // each in the upper byte of a half
  const uint32_t nan = ((x & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
  // Exponent and mantissa where f16 has them are the value times 2^-8, denormals included.
  out = multiply_f16x2((x & 0x80008000u) | ((x >> 1) & 0x3f803f80u), 0x5c005c00u);
  out |= nan - (nan >> 15);
#endif
  return out;
}
template <class T>
DEVICE_FUNCTION uint32_t min_halves(uint32_t a, uint32_t b) {
  uint32_t out;
  if constexpr (std::is_same_v<T, bf16>)
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  else
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
template <class T>
DEVICE_FUNCTION uint32_t max_halves(uint32_t a, uint32_t b) {
  uint32_t out;
  if constexpr (std::is_same_v<T, bf16>)
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  else
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
DEVICE_FUNCTION uint32_t pack_e4m3fn(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
  return out;
#else
  return encode_e4m3fn(low) | static_cast<uint32_t>(encode_e4m3fn(high)) << 8;
#endif
}
// The same of a pair of halves.
template <class T>
DEVICE_FUNCTION uint32_t pack_e4m3fn_pair(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, f16>) {
    uint16_t out;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(out) : "r"(pair));
    return out;
  }
#endif
  return pack_e4m3fn(low_half<T>(pair), high_half<T>(pair));
}

// Math.
DEVICE_FUNCTION float saturate(float x) { return ::__saturatef(x); }
DEVICE_FUNCTION float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

DEVICE_FUNCTION float rsqrt_fast(float x) {
  float out;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

DEVICE_FUNCTION float reciprocal_fast(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// A pointer whose sum the compiler does not take apart to add the terms to each index instead.
template <class T>
DEVICE_FUNCTION const T* keep_whole(const T* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

// A number that stays in a register, where the compiler would work it out again at each use.
DEVICE_FUNCTION uint32_t keep_whole(uint32_t x) {
  asm("" : "+r"(x));
  return x;
}

// Memory. Shared addresses are 32 bits and may be put together with OR; a pointer would be taken
// apart and added up again.
struct Words2 {
  uint32_t x[2];
};
// Memory. A struct of four words that is copied by = becomes four accesses more often than not.
template <class T>
DEVICE_FUNCTION T load16(const void* from) {
  static_assert(sizeof(T) == 16);
  return bit_cast<T>(*static_cast<const uint4*>(from));
}
template <class T>
DEVICE_FUNCTION void store16(void* global, const T& value) {
  static_assert(sizeof(T) == 16);
  const uint4 words = bit_cast<uint4>(value);
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
// A store of what this kernel does not read again: its line leaves the L2 first.
template <class T>
DEVICE_FUNCTION void store_once16(void* global, const T& value) {
  static_assert(sizeof(T) == 16);
  const uint4 words = bit_cast<uint4>(value);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
DEVICE_FUNCTION uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
DEVICE_FUNCTION void copy_async16(void* shared, const void* global, bool valid, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}
struct Words4 {
  uint32_t x[4];
};
template <int kOffset>
DEVICE_FUNCTION void copy_async16_at(SharedAddress to, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%2], 16;" ::"r"(to), "l"(global), "n"(kOffset)
               : "memory");
}
DEVICE_FUNCTION uint32_t load_shared2(SharedAddress a) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(a));
  return x;
}
DEVICE_FUNCTION uint32_t load_shared4(SharedAddress a) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(a));
  return x;
}
DEVICE_FUNCTION Words2 load_shared8(SharedAddress a) {
  Words2 w;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(w.x[0]), "=r"(w.x[1]) : "r"(a));
  return w;
}
DEVICE_FUNCTION Words4 load_once16(const void* global) {
  Words4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(global));
  return w;
}
DEVICE_FUNCTION Words4 load_once16_of_line(const void* global) {
  Words4 w;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "l"(global));
  return w;
}

DEVICE_FUNCTION Words4 load_shared16(SharedAddress a) {
  Words4 w;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.x[0]), "=r"(w.x[1]), "=r"(w.x[2]), "=r"(w.x[3])
               : "r"(a)
               : "memory");
  return w;
}

// One more in a counter in shared memory: what it was.
DEVICE_FUNCTION uint32_t count_in(uint32_t* shared) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "r"(shared_address(shared))
               : "memory");
  return before;
}

// Bulk copies. Nothing of this below sm_90: host code asks device::copies_in_bulk().
struct BulkBarrier {
  uint64_t state;
};
DEVICE_FUNCTION void bulk_begin(SharedAddress barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier) : "memory");
#endif
}
DEVICE_FUNCTION void bulk_begun() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEVICE_FUNCTION void bulk_announce(SharedAddress barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
DEVICE_FUNCTION void bulk_copy(SharedAddress to, const void* global, uint32_t bytes,
                               SharedAddress barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
#endif
}
DEVICE_FUNCTION void bulk_wait(SharedAddress barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
}

}  // namespace device
