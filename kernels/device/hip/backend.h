// SPDX-License-Identifier: Apache-2.0
// The dialect on AMD GPUs (CDNA, 64 lanes), of clang's builtins alone: no ROCm header is needed.
// Meanings: device/dialect.md. Compiled in the tests for gfx942 and gfx950; it has not run on an
// AMD device yet.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define DEVICE_KERNEL(max_threads) \
  __attribute__((global, amdgpu_flat_work_group_size(1, max_threads))) void
#define DEVICE_KERNEL_BLOCKS(max_threads, blocks_of_a_processor) DEVICE_KERNEL(max_threads)
#define DEVICE_FUNCTION __attribute__((device, always_inline)) inline
#define DEVICE_UNROLL _Pragma("unroll")
#define DEVICE_ROLLED _Pragma("nounroll")
#define DEVICE_SHARED(type, name, count) __attribute__((shared, aligned(16))) type name[count]
#define DEVICE_DYNAMIC_SHARED(type, name)                                            \
  extern __attribute__((shared, aligned(16))) unsigned char device_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(device_dynamic_shared)

namespace device {

template <class T>
DEVICE_FUNCTION T* data(T* array) {
  return array;
}

// Indices. The implicit arguments of code object version 5 begin with the block counts.
inline constexpr int kWave = 64;
DEVICE_FUNCTION int implicit_argument(int i) {
  return ((const __attribute__((address_space(4))) int*)__builtin_amdgcn_implicitarg_ptr())[i];
}
DEVICE_FUNCTION int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
DEVICE_FUNCTION int threads() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE_FUNCTION int block_x() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
DEVICE_FUNCTION int block_y() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
DEVICE_FUNCTION int block_z() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }
DEVICE_FUNCTION int blocks_x() { return implicit_argument(0); }
DEVICE_FUNCTION int blocks_y() { return implicit_argument(1); }
DEVICE_FUNCTION int blocks_z() { return implicit_argument(2); }
DEVICE_FUNCTION int lane() {
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)));
}
DEVICE_FUNCTION int wave() { return thread() / kWave; }
DEVICE_FUNCTION int waves() { return (threads() + kWave - 1) / kWave; }

// Barriers.
DEVICE_FUNCTION void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE_FUNCTION void sync_wave() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
DEVICE_FUNCTION void fence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEVICE_FUNCTION void wait_for_previous() {}
DEVICE_FUNCTION void allow_next() {}

// Bits.
template <class To, class From>
DEVICE_FUNCTION To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<From>);
  return __builtin_bit_cast(To, from);
}
template <class T>
DEVICE_FUNCTION T load(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}

// Shuffles: the lane's word is fetched through the LDS crossbar, whose addresses count bytes.
template <class T>
concept Shuffled = (sizeof(T) == 4 || sizeof(T) == 8) && std::is_trivially_copyable_v<T>;

template <Shuffled T>
DEVICE_FUNCTION T shuffle(T v, int from) {
  if constexpr (sizeof(T) == 4) {
    return bit_cast<T>(__builtin_amdgcn_ds_bpermute(from * 4, bit_cast<int>(v)));
  } else {
    struct Words {
      int low, high;
    };
    const Words w = bit_cast<Words>(v);
    return bit_cast<T>(Words{__builtin_amdgcn_ds_bpermute(from * 4, w.low),
                             __builtin_amdgcn_ds_bpermute(from * 4, w.high)});
  }
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_xor(T v, int mask) {
  return shuffle(v, lane() ^ mask);
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_up(T v, int delta) {
  const int from = lane() - delta;
  return shuffle(v, from < 0 ? lane() : from);
}
template <Shuffled T>
DEVICE_FUNCTION T shuffle_down(T v, int delta) {
  const int from = lane() + delta;
  return shuffle(v, from >= kWave ? lane() : from);
}

// Votes.
using LaneMask = uint64_t;
DEVICE_FUNCTION LaneMask ballot(bool b) { return __builtin_amdgcn_ballot_w64(b); }
DEVICE_FUNCTION int popcount(LaneMask m) { return __builtin_popcountll(m); }
DEVICE_FUNCTION int first_lane(LaneMask m) {
  return __builtin_ffsll(static_cast<long long>(m)) - 1;
}
DEVICE_FUNCTION LaneMask lanes_below() { return (LaneMask{1} << lane()) - 1; }
DEVICE_FUNCTION bool any(bool b) { return ballot(b) != 0; }
DEVICE_FUNCTION bool all(bool b) { return ballot(!b) == 0; }

// Atomics.
template <class T>
concept Atomic = std::same_as<T, int32_t> || std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;
template <Atomic T>
DEVICE_FUNCTION T atomic_add(T* p, std::type_identity_t<T> v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEVICE_FUNCTION float atomic_add(float* p, float v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_max(T* p, std::type_identity_t<T> v) {
  return __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_min(T* p, std::type_identity_t<T> v) {
  return __hip_atomic_fetch_min(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_or(T* p, std::type_identity_t<T> v) {
  return __hip_atomic_fetch_or(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_exchange(T* p, std::type_identity_t<T> v) {
  return __hip_atomic_exchange(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <Atomic T>
DEVICE_FUNCTION T atomic_cas(T* p, std::type_identity_t<T> expected,
                             std::type_identity_t<T> desired) {
  __hip_atomic_compare_exchange_strong(p, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

// Asynchronous copies: done at once, through registers; the barrier that has to follow orders them.
DEVICE_FUNCTION void copy_async16(void* shared, const void* global, bool valid) {
  typedef uint32_t Words __attribute__((ext_vector_type(4)));
  Words words = 0;
  if (valid) words = *static_cast<const Words*>(global);
  *static_cast<Words*>(shared) = words;
}
DEVICE_FUNCTION void copy_async_commit() {}
template <int N>
DEVICE_FUNCTION void copy_async_wait() {}

// Float math. clang lowers these to the hardware's instructions with the denormal range handled.
DEVICE_FUNCTION float exp2(float x) { return __builtin_exp2f(x); }
DEVICE_FUNCTION float exp(float x) { return __builtin_expf(x); }
DEVICE_FUNCTION float log2(float x) { return __builtin_log2f(x); }
DEVICE_FUNCTION float log(float x) { return __builtin_logf(x); }
DEVICE_FUNCTION float sqrt(float x) { return __builtin_sqrtf(x); }
DEVICE_FUNCTION float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
DEVICE_FUNCTION float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE_FUNCTION float divide(float a, float b) {
  return a / b;
}  // -fhip-fp32-correctly-rounded-divide-sqrt, default
DEVICE_FUNCTION float abs(float x) { return __builtin_fabsf(x); }
DEVICE_FUNCTION float floor(float x) { return __builtin_floorf(x); }
DEVICE_FUNCTION bool isnan(float x) { return x != x; }
DEVICE_FUNCTION float infinity() { return __builtin_inff(); }
DEVICE_FUNCTION float nan() { return __builtin_nanf(""); }
DEVICE_FUNCTION float min(float a, float b) { return __builtin_fminf(a, b); }
DEVICE_FUNCTION float max(float a, float b) { return __builtin_fmaxf(a, b); }
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
