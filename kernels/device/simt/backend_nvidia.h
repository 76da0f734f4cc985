// SPDX-License-Identifier: Apache-2.0
// device/nvidia.h on the host, for 32 lanes. Matrices are moved by shuffles, so that a wrong
// address or a lane that is missing shows as it does for those.
#pragma once

namespace device {

// Barriers.
inline void fence_acquire_release() { simt::fence(); }
inline bool sync_block_any(bool b, Site site = Site::current()) {
  DEVICE_SHARED(uint32_t, found, 1);
  if (thread() == 0) found[0] = 0;
  device::sync_block(site);
  if (b) atomic_or(&found[0], 1u);
  device::sync_block(site);
  const bool any_found = found[0] != 0;
  device::sync_block(site);
  return any_found;
}

template <class T>
const T* keep_whole(const T* pointer) {
  return pointer;
}

template <class T>
  requires std::is_unsigned_v<T>
T keep_whole(T x) {
  return x;
}

// Matrices.
template <class T>
void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                      Site site = Site::current()) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  uint16_t a_halves[8], b_halves[4];
  std::memcpy(a_halves, a, sizeof(a));
  std::memcpy(b_halves, b, sizeof(b));
  simt::multiply(std::is_same_v<T, bf16> ? simt::Half::bf16 : simt::Half::f16, d, a_halves,
                 b_halves, site);
}
inline void multiply_16x8x8(float (&d)[4], const uint32_t (&a)[2], uint32_t b,
                            Site site = Site::current()) {
  const uint32_t whole_a[4] = {a[0], a[1], 0, 0}, whole_b[2] = {b, 0};  // k 8 ... 15 are zero
  multiply_16x8x16<f16>(d, whole_a, whole_b, site);
}
inline void multiply_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             Site site = Site::current()) {
  simt::multiply_bytes(d, a, b, site);
}
inline const uint16_t* row_of_lane(const void* row, int of, Site site) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    simt::fail("load_matrices: a row is not aligned to 16 bytes", site);
  return device::bit_cast<const uint16_t*>(
      device::shuffle(reinterpret_cast<uint64_t>(row), of, site));
}
inline void load_matrices(uint32_t (&r)[4], const void* shared, int at = 0,
                          Site site = Site::current()) {
  const void* row = static_cast<const char*>(shared) + at;
  for (int m = 0; m < 4; ++m)
    std::memcpy(&r[m], row_of_lane(row, 8 * m + lane() / 4, site) + lane() % 4 * 2, 4);
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void* shared, int at = 0,
                                     Site site = Site::current()) {
  const void* row = static_cast<const char*>(shared) + at;
  for (int m = 0; m < 4; ++m) {
    const uint32_t low = row_of_lane(row, 8 * m + lane() % 4 * 2, site)[lane() / 4];
    const uint32_t high = row_of_lane(row, 8 * m + lane() % 4 * 2 + 1, site)[lane() / 4];
    r[m] = low | high << 16;
  }
}
inline uint32_t transpose_8x8(uint32_t r, Site site = Site::current()) {
  const int from = lane() % 4 * 8 + lane() / 8, shift = lane() / 4 % 2 * 16;
  const uint32_t low = device::shuffle(r, from, site) >> shift & 0xffff;
  const uint32_t high = device::shuffle(r, from + 4, site) >> shift & 0xffff;
  return low | high << 16;
}

// Bits.
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t which = selector >> (4 * i) & 7;
    out |= (static_cast<uint32_t>(bytes >> (8 * which)) & 255) << (8 * i);
  }
  return out;
}
inline uint32_t funnel_shift_right(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t look_up_bytes(uint32_t low, uint32_t high, uint32_t selector,
                              Site site = Site::current()) {
  if (selector & 0x8888) simt::fail("look_up_bytes: a nibble of the selector is above 7", site);
  return permute_bytes(low, high, selector);
}
inline int32_t dot_bytes(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
template <class T>
T lookup32(T v, uint32_t index, Site site = Site::current()) {
  return device::shuffle(v, static_cast<int>(index & 31), site);
}

// Pairs of halves.
template <class T>
uint32_t pack_halves(float low, float high) {
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}
template <class T>
float low_half(uint32_t pair) {
  return to_float(T{static_cast<uint16_t>(pair)});
}
template <class T>
float high_half(uint32_t pair) {
  return to_float(T{static_cast<uint16_t>(pair >> 16)});
}
inline uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  return pack_halves<f16>(low_half<f16>(a) * low_half<f16>(b),
                          high_half<f16>(a) * high_half<f16>(b));
}
inline uint32_t e4m3fn_to_f16x2(uint32_t bytes) {
  return pack_halves<f16>(decode_e4m3fn(static_cast<uint8_t>(bytes & 255)),
                          decode_e4m3fn(static_cast<uint8_t>(bytes >> 8 & 255)));
}
template <class T, class Less>
uint32_t pick_halves(uint32_t a, uint32_t b, Less less) {
  const auto pick = [&](float x, float y) {
    if (isnan(x) || isnan(y)) return nan();
    return x == y ? (less(std::signbit(y), std::signbit(x)) ? x : y) : less(x, y) ? x : y;
  };
  return pack_halves<T>(pick(low_half<T>(a), low_half<T>(b)),
                        pick(high_half<T>(a), high_half<T>(b)));
}
template <class T>
uint32_t min_halves(uint32_t a, uint32_t b) {
  return pick_halves<T>(a, b, [](auto x, auto y) { return x < y; });
}
template <class T>
uint32_t max_halves(uint32_t a, uint32_t b) {
  return pick_halves<T>(a, b, [](auto x, auto y) { return x > y; });
}
inline uint32_t pack_e4m3fn(float low, float high) {
  return encode_e4m3fn(low) | static_cast<uint32_t>(encode_e4m3fn(high)) << 8;
}

template <class T>
uint32_t pack_e4m3fn_pair(uint32_t pair) {
  return pack_e4m3fn(low_half<T>(pair), high_half<T>(pair));
}

// Math.
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline float rsqrt_fast(float x) {
  return x < std::numeric_limits<float>::min() ? std::numeric_limits<float>::infinity()
                                               : 1 / std::sqrt(x);
}
inline float reciprocal_fast(float x) {
  return x < std::numeric_limits<float>::min() ? std::numeric_limits<float>::infinity() : 1 / x;
}

// Memory.
using SharedAddress = uintptr_t;
struct Words2 {
  uint32_t x[2];
};
inline void check_aligned16(const void* at, const char* what, Site site) {
  if (reinterpret_cast<uintptr_t>(at) % 16)
    simt::fail(std::string(what) + ": the address is not aligned to 16 bytes", site);
}
template <class T>
T load16(const void* from, Site site = Site::current()) {
  static_assert(sizeof(T) == 16);
  check_aligned16(from, "load16", site);
  T value;
  std::memcpy(&value, from, 16);
  return value;
}
template <class T>
void store16(void* global, const T& value, Site site = Site::current()) {
  static_assert(sizeof(T) == 16);
  check_aligned16(global, "store16", site);
  std::memcpy(global, &value, 16);
}
template <class T>
void store_once16(void* global, const T& value, Site site = Site::current()) {
  store16(global, value, site);
}
inline uint64_t l2_evict_first() { return 0; }
inline void copy_async16(void* shared, const void* global, bool valid, uint64_t,
                         Site site = Site::current()) {
  copy_async16(shared, global, valid, site);
}
struct Words4 {
  uint32_t x[4];
};
inline SharedAddress shared_address(const void* shared) {
  return reinterpret_cast<SharedAddress>(shared);
}
template <int kOffset>
void copy_async16_at(SharedAddress to, const void* global, Site site = Site::current()) {
  device::copy_async16(reinterpret_cast<std::byte*>(to) + kOffset,
                       static_cast<const std::byte*>(global) + kOffset, true, site);
}
template <class T>
T load_shared(SharedAddress a, Site site) {
  if (a % sizeof(T)) simt::fail("load_shared: the address is not aligned to the size", site);
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(a), sizeof(T));
  return value;
}
inline uint32_t load_shared2(SharedAddress a, Site site = Site::current()) {
  return load_shared<uint16_t>(a, site);
}
inline uint32_t load_shared4(SharedAddress a, Site site = Site::current()) {
  return load_shared<uint32_t>(a, site);
}
inline Words2 load_shared8(SharedAddress a, Site site = Site::current()) {
  return load_shared<Words2>(a, site);
}
inline Words4 load_once16(const void* global, Site site = Site::current()) {
  if (reinterpret_cast<uintptr_t>(global) % 16)
    simt::fail("load_once16: the address is not aligned to 16 bytes", site);
  return *static_cast<const Words4*>(global);
}
inline Words4 load_once16_of_line(const void* global, Site site = Site::current()) {
  return load_once16(global, site);
}

inline Words4 load_shared16(SharedAddress a, Site site = Site::current()) {
  return load_shared<Words4>(a, site);
}

inline uint32_t count_in(uint32_t* shared) {
  return __atomic_fetch_add(shared, 1u, __ATOMIC_ACQ_REL);
}

// Bulk copies: the target is 0xff until a wait covers the copy; only then is the source read.
using BulkBarrier = simt::BulkBarrier;
inline BulkBarrier* barrier_at(SharedAddress a) { return reinterpret_cast<BulkBarrier*>(a); }
inline void bulk_begin(SharedAddress barrier, Site site = Site::current()) {
  simt::begin_bulk_barrier(barrier_at(barrier), site);
}
inline void bulk_begun() {}
inline void bulk_announce(SharedAddress barrier, uint32_t bytes, Site site = Site::current()) {
  simt::announce_bulk_copies(barrier_at(barrier), bytes, site);
}
inline void bulk_copy(SharedAddress to, const void* global, uint32_t bytes, SharedAddress barrier,
                      uint64_t, Site site = Site::current()) {
  simt::begin_bulk_copy(barrier_at(barrier), {reinterpret_cast<void*>(to), global, bytes}, site);
  std::memset(reinterpret_cast<void*>(to), 0xff, bytes);
  simt::leave_bulk_barrier(barrier_at(barrier));
}
inline void bulk_wait(SharedAddress barrier, uint32_t parity, Site site = Site::current()) {
  size_t count = 0;
  const simt::BulkCopy* copies = simt::take_bulk_copies(barrier_at(barrier), parity, &count, site);
  for (size_t i = 0; i < count; ++i) std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
  simt::leave_bulk_barrier(barrier_at(barrier));
}

}  // namespace device
