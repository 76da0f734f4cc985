// SPDX-License-Identifier: Apache-2.0
// The dialect on NVIDIA GPUs. Meanings: device/dialect.md.
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define DEVICE_KERNEL(max_threads) __global__ void __launch_bounds__(max_threads)
#define DEVICE_KERNEL_BLOCKS(max_threads, blocks_of_a_processor) \
  __global__ void __launch_bounds__(max_threads, blocks_of_a_processor)
#define DEVICE_FUNCTION __device__ __forceinline__
#define DEVICE_UNROLL _Pragma("unroll")
#define DEVICE_ROLLED _Pragma("unroll 1")
#define DEVICE_SHARED(type, name, count) __shared__ __align__(16) type name[count]
// One name for all types: templates that differ in type would else declare one extern array twice.
// Aligned to a line for speed alone (promised are 16 bytes): behind a static variable it began 16
// bytes beyond one, and asynchronous copies of 16 bytes fetch each sector twice where source and
// destination lie differently within 32 bytes.
#define DEVICE_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char device_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(device_dynamic_shared)

namespace device {

template <class T>
DEVICE_FUNCTION T* data(T* array) {
  return array;
}

// Indices.
inline constexpr int kWave = 32;
DEVICE_FUNCTION int thread() { return static_cast<int>(threadIdx.x); }
DEVICE_FUNCTION int threads() { return static_cast<int>(blockDim.x); }
DEVICE_FUNCTION int block_x() { return static_cast<int>(blockIdx.x); }
DEVICE_FUNCTION int block_y() { return static_cast<int>(blockIdx.y); }
DEVICE_FUNCTION int block_z() { return static_cast<int>(blockIdx.z); }
DEVICE_FUNCTION int blocks_x() { return static_cast<int>(gridDim.x); }
DEVICE_FUNCTION int blocks_y() { return static_cast<int>(gridDim.y); }
DEVICE_FUNCTION int blocks_z() { return static_cast<int>(gridDim.z); }
DEVICE_FUNCTION int lane() { return thread() % kWave; }
DEVICE_FUNCTION int wave() { return thread() / kWave; }
DEVICE_FUNCTION int waves() { return (threads() + kWave - 1) / kWave; }

// Barriers.
inline constexpr unsigned kAllLanes = 0xffffffffu;
DEVICE_FUNCTION void sync_block() { __syncthreads(); }
DEVICE_FUNCTION void sync_wave() { __syncwarp(kAllLanes); }
DEVICE_FUNCTION void fence() { __threadfence(); }
DEVICE_FUNCTION void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE_FUNCTION void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Bits.
template <class To, class From>
DEVICE_FUNCTION To
bit_cast(From from) {  // by value: a host constant cannot be referred to in device code
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From>);
  return __builtin_bit_cast(To, from);
}
template <class T>
DEVICE_FUNCTION T load(const void* p) {
  struct Bytes {
    unsigned char byte[sizeof(T)];
  };
  return bit_cast<T>(*static_cast<const Bytes*>(p));
}

// Shuffles.
template <class T>
using ShuffleBits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
template <class T>
concept Shuffled = (sizeof(T) == 4 || sizeof(T) == 8) && std::is_trivially_copyable_v<T>;

template <Shuffled T>
DEVICE_FUNCTION T shuffle(T v, int lane) {
  return bit_cast<T>(__shfl_sync(kAllLanes, bit_cast<ShuffleBits<T>>(v), lane));
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_xor(T v, int mask) {
  return bit_cast<T>(__shfl_xor_sync(kAllLanes, bit_cast<ShuffleBits<T>>(v), mask));
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_up(T v, int delta) {
  return bit_cast<T>(
      __shfl_up_sync(kAllLanes, bit_cast<ShuffleBits<T>>(v), static_cast<unsigned>(delta)));
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_down(T v, int delta) {
  return bit_cast<T>(
      __shfl_down_sync(kAllLanes, bit_cast<ShuffleBits<T>>(v), static_cast<unsigned>(delta)));
}

// Votes.
using LaneMask = uint32_t;
DEVICE_FUNCTION LaneMask ballot(bool b) { return __ballot_sync(kAllLanes, b); }
DEVICE_FUNCTION int popcount(LaneMask m) { return __popc(m); }
DEVICE_FUNCTION int first_lane(LaneMask m) { return __ffs(static_cast<int>(m)) - 1; }
DEVICE_FUNCTION LaneMask lanes_below() { return (LaneMask{1} << lane()) - 1; }
DEVICE_FUNCTION bool any(bool b) { return __any_sync(kAllLanes, b) != 0; }
DEVICE_FUNCTION bool all(bool b) { return __all_sync(kAllLanes, b) != 0; }

// One instruction instead of the shuffles of collectives.h.
DEVICE_FUNCTION uint32_t wave_sum(uint32_t v) { return __reduce_add_sync(kAllLanes, v); }

// Atomics: CUDA's take `unsigned long long`, which is another type than uint64_t.
template <class T>
concept Atomic = std::same_as<T, int32_t> || std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;
template <Atomic T>
using AtomicWord = std::conditional_t<std::same_as<T, uint64_t>, unsigned long long, T>;
template <Atomic T>
DEVICE_FUNCTION AtomicWord<T>* atomic_word(T* p) {
  return reinterpret_cast<AtomicWord<T>*>(p);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_add(T* p, std::type_identity_t<T> v) {
  return atomicAdd(atomic_word(p), static_cast<AtomicWord<T>>(v));
}
DEVICE_FUNCTION float atomic_add(float* p, float v) { return atomicAdd(p, v); }
template <Atomic T>
DEVICE_FUNCTION T atomic_max(T* p, std::type_identity_t<T> v) {
  return atomicMax(atomic_word(p), static_cast<AtomicWord<T>>(v));
}
template <Atomic T>
DEVICE_FUNCTION T atomic_min(T* p, std::type_identity_t<T> v) {
  return atomicMin(atomic_word(p), static_cast<AtomicWord<T>>(v));
}
template <Atomic T>
DEVICE_FUNCTION T atomic_or(T* p, std::type_identity_t<T> v) {
  return atomicOr(atomic_word(p), static_cast<AtomicWord<T>>(v));
}
template <Atomic T>
DEVICE_FUNCTION T atomic_exchange(T* p, std::type_identity_t<T> v) {
  return atomicExch(atomic_word(p), static_cast<AtomicWord<T>>(v));
}
template <Atomic T>
DEVICE_FUNCTION T atomic_cas(T* p, std::type_identity_t<T> expected,
                             std::type_identity_t<T> desired) {
  return atomicCAS(atomic_word(p), static_cast<AtomicWord<T>>(expected),
                   static_cast<AtomicWord<T>>(desired));
}

// Asynchronous copies. The source is not read where not valid: the instruction fills with zeros.
DEVICE_FUNCTION void copy_async16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
DEVICE_FUNCTION void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
DEVICE_FUNCTION void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Formats. In software the conversion cost attend on f16 caches 2.4 times the time of bf16.
#define DEVICE_HALF_TO_FLOAT
DEVICE_FUNCTION float half_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Float math.
DEVICE_FUNCTION float exp2(float x) { return ::exp2f(x); }
DEVICE_FUNCTION float exp(float x) { return ::expf(x); }
DEVICE_FUNCTION float log2(float x) { return ::log2f(x); }
DEVICE_FUNCTION float log(float x) { return ::logf(x); }
DEVICE_FUNCTION float sqrt(float x) { return ::__fsqrt_rn(x); }
DEVICE_FUNCTION float rsqrt(float x) { return ::rsqrtf(x); }
DEVICE_FUNCTION float fma(float a, float b, float c) { return ::__fmaf_rn(a, b, c); }
DEVICE_FUNCTION float divide(float a, float b) { return ::__fdiv_rn(a, b); }
DEVICE_FUNCTION float abs(float x) { return ::fabsf(x); }
DEVICE_FUNCTION float floor(float x) { return ::floorf(x); }
DEVICE_FUNCTION bool isnan(float x) { return x != x; }
DEVICE_FUNCTION float infinity() { return __int_as_float(0x7f800000); }
DEVICE_FUNCTION float nan() { return __int_as_float(0x7fc00000); }
DEVICE_FUNCTION float min(float a, float b) { return ::fminf(a, b); }
DEVICE_FUNCTION float max(float a, float b) { return ::fmaxf(a, b); }
template <std::integral T>
DEVICE_FUNCTION T min(T a, T b) {
  return a < b ? a : b;
}
template <std::integral T>
DEVICE_FUNCTION T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace device

#include "mma.h"
