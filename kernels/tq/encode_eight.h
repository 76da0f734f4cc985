// SPDX-License-Identifier: Apache-2.0
// Vectors eight at a time, straight from global memory into the registers of a wave. Lane = 4 *
// group + member: vector `group` of the eight, its elements 8 (member + 4 i) ... + 7 for every i.
// Values and fp8 keys, and the way of the finished slots to the cache.
#pragma once

#include "tq/encode_work.h"

namespace tq::encode::sm_80 {

inline constexpr int kEight = 8;
DEVICE_FUNCTION int group() { return device::lane() / 4; }
DEVICE_FUNCTION int member() { return device::lane() % 4; }

// This lane's vector of a piece of work. Behind the last vector: one that exists.
struct Walk {
  int token, head;
};
DEVICE_FUNCTION Walk walk_from(const Params& p, int first) {
  const Place at = place_of(p, first + group());
  return {at.token, at.head};
}
DEVICE_FUNCTION Walk next_of(const Params& p, const Walk& w) {
  int token = w.token + p.step_tokens, head = w.head + p.step_heads;
  if (head >= p.heads) {
    head -= p.heads;
    ++token;
  }
  return {device::min(token, p.tokens - 1), head};
}
// kLoads pieces of 8 elements a lane. Unless the head size is kExactly 32 kLoads, the last piece is
// read again by lanes that have none of their own.
template <bool kExactly>
DEVICE_FUNCTION int piece_of(const Params& p, int i) {
  const int piece = member() + 4 * i;
  return kExactly ? piece : device::min(piece, p.s.format.head_dim / kGroup - 1);
}
template <class T, bool kExactly, int kLoads>
DEVICE_FUNCTION void load_eight(const Params& p, const Rows& from, const Walk& w,
                                Piece<T> (&x)[kLoads]) {
  const T* row = static_cast<const T*>(from.data) + from.offset(w.token, w.head);
  if constexpr (kExactly) row += member() * kGroup;
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) {
    const int at = kExactly ? 4 * i : piece_of<kExactly>(p, i);
    load_piece(row + at * kGroup, x[i]);
  }
}

// Over the lanes of a vector.
DEVICE_FUNCTION bool any_member(bool b) {
  int x = b;
  x |= device::shuffle_xor(x, 1);
  return (x | device::shuffle_xor(x, 2)) != 0;
}

struct Ends {
  float low, high;
  bool finite;
};
template <class T, int kLoads>
DEVICE_FUNCTION Ends find_ends(const Halves8 (&x)[kLoads]) {
  uint32_t least = x[0].pair[0], most = least;
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) {
    least = device::min_halves<T>(least, x[i].pair[n]);
    most = device::max_halves<T>(most, x[i].pair[n]);
  }
  // Minimum and negative maximum side by side; a NaN stays.
  most ^= 0x80008000u;
  uint32_t ends = device::min_halves<T>(device::permute_bytes(least, most, 0x5410),
                                        device::permute_bytes(least, most, 0x7632));
  DEVICE_UNROLL
  for (int mask = 1; mask < 4; mask *= 2)
    ends = device::min_halves<T>(ends, device::shuffle_xor(ends, mask));
  const float low = device::low_half<T>(ends), high = -device::high_half<T>(ends);
  return {low, high, device::abs(low) + device::abs(high) < device::infinity()};
}
template <class T, int kLoads>
DEVICE_FUNCTION Ends find_ends(const Floats8 (&x)[kLoads]) {
  float low = device::infinity(), high = -low, zero = 0;
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e) {
    const float y = element_of<T>(x[i], e);
    low = device::min(low, y);
    high = device::max(high, y);
    zero = device::fma(y, 0.0f, zero);  // a NaN where one is not finite
  }
  DEVICE_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    low = device::min(low, device::shuffle_xor(low, mask));
    high = device::max(high, device::shuffle_xor(high, mask));
    zero += device::shuffle_xor(zero, mask);
  }
  return {low, high, zero == 0};
}

// Codes of the value of these lanes to its slot in the stage. False: it takes the definition's
// path.
template <class T, bool kExactly, int kLoads>
DEVICE_FUNCTION bool encode_values(const Params& p, const Piece<T> (&x)[kLoads], uint8_t* slot) {
  const SlotFormat& f = p.s.format;
  const auto [low, high, finite] = find_ends<T>(x);
  const float range = high - low;
  const float scale = device::max(range * p.value_levels_inverse, 1e-8f);
  // Codes bear an error of 2^-22: the reciprocal is corrected once.
  const float guess = device::reciprocal_fast(range);
  const float inverse = device::fma(device::fma(-range, guess, 1.0f), guess, guess);
  const float steps = scale > 1e-8f ? p.value_levels * inverse : 1e8f;
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) {
    uint32_t word = 0;
    DEVICE_UNROLL
    for (int e = kGroup - 1; e >= 0; --e)
      word = word * p.value_radix +
             device::bit_cast<uint32_t>(device::fma(element_of<T>(x[i], e) - low, steps, kWhole));
    stage_codes(slot, f.value_at + piece_of<kExactly>(p, i) * f.value_bits, f.value_bits,
                word - p.value_wholes);
  }
  if (member() == 0) {
    stage_half(slot, f.scale_at, scale);
    stage_half(slot, f.zero_at, low);
  }
  return finite && device::max(device::abs(low), scale) < kHalfOverflows;
}

// Pairs of fp8 bytes; false: there may be a NaN.
template <class T, int kLoads>
DEVICE_FUNCTION bool pack_fp8(const Halves8 (&x)[kLoads], uint32_t (&bytes)[kLoads][4]) {
  uint32_t all = x[0].pair[0];
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) {
    all = device::max_halves<T>(all, x[i].pair[n]);
    bytes[i][n] = device::pack_e4m3fn_pair<T>(x[i].pair[n]);
  }
  return !device::isnan(device::low_half<T>(all)) && !device::isnan(device::high_half<T>(all));
}
template <class T, int kLoads>
DEVICE_FUNCTION bool pack_fp8(const Floats8 (&x)[kLoads], uint32_t (&bytes)[kLoads][4]) {
  float zero = 0;
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) {
    const float low = element_of<T>(x[i], 2 * n), high = element_of<T>(x[i], 2 * n + 1);
    zero = device::fma(low, 0.0f, device::fma(high, 0.0f, zero));
    bytes[i][n] = device::pack_e4m3fn(low, high);
  }
  return zero == 0;
}
// fp8 keys. False: the definition's path.
template <class T, bool kExactly, int kLoads>
DEVICE_FUNCTION bool encode_fp8_keys(const Params& p, const Piece<T> (&x)[kLoads], uint8_t* slot) {
  uint32_t bytes[kLoads][4];
  const bool numbers = pack_fp8<T>(x, bytes);
  DEVICE_UNROLL
  for (int i = 0; i < kLoads; ++i) {
    uint8_t* to = slot + piece_of<kExactly>(p, i) * kGroup;
    if (p.words) {
      auto* words = reinterpret_cast<uint32_t*>(to);
      words[0] = bytes[i][0] | bytes[i][1] << 16;
      words[1] = bytes[i][2] | bytes[i][3] << 16;
    } else {
      DEVICE_UNROLL
      for (int n = 0; n < 4; ++n) stage_u16(to, 2 * n, bytes[i][n]);
    }
  }
  return !any_member(!numbers) && p.s.format.fp8 == TK_E4M3FN;
}

// Vectors that take the definition's path, after everything else: what a wave has written for them
// is written again. A round is a turn of the wave's loop.
struct HardVectors {
  uint32_t of_lane = 0;  // of this lane's vectors: bit 2 * round for keys, the next one for values
  DEVICE_FUNCTION void add_key(int round, bool key) {
    of_lane |= static_cast<uint32_t>(key) << (2 * round);
  }
  DEVICE_FUNCTION void add_value(int round, bool value) {
    of_lane |= static_cast<uint32_t>(value) << (2 * round + 1);
  }
};
static_assert(2 * kMostRounds <= 32);
DEVICE_FUNCTION void encode_by_definition(const Params& p, const WriterTables& writer,
                                          const Share& share, int vector, bool key, bool value) {
  if ((!key && !value) || device::lane() * kGroup >= p.s.format.head_dim) return;
  const Place at = place_of(p, vector);
  const int64_t target = find_target(p, writer, share, at.token, at.head);
  if (target == kMasked) return;
  const Slot slot = slot_at(p.s.cache, target);
  const int64_t from = p.key.offset(at.token, at.head);
  if (key && p.s.format.fp8)
    encode_fp8_key(p.s, slot, from, device::lane(), kGroup);
  else if (key)
    encode_centroid_key(p.s, slot, from, device::lane(), kGroup);
  if (value) encode_value(p.s, slot, p.value.offset(at.token, at.head), device::lane(), kGroup);
}
DEVICE_FUNCTION void settle_hard(const Params& p, const WriterTables& writer, const Share& share,
                                 const HardVectors& hard) {
  if (!device::any(hard.of_lane != 0)) return;
  device::sync_wave();
  int first = share.first + device::wave() * kEight;
  DEVICE_ROLLED
  for (int round = 0; first < share.last; ++round) {
    DEVICE_ROLLED
    for (int v = 0; v < kEight; ++v) {
      const uint32_t bits = device::shuffle(hard.of_lane, 4 * v) >> (2 * round);
      if (first + v < p.vectors)
        encode_by_definition(p, writer, share, first + v, bits & 1, bits & 2);
    }
    first += device::waves() * kEight;
  }
}

// The stage to the cache; `at` of this lane's vector.
DEVICE_FUNCTION void write_eight(const Params& p, const WriterTables& writer, const Share& share,
                                 int first, const Walk& at, const uint8_t* stage) {
  const int count = device::min(p.vectors - first, kEight);
  const int64_t target =
      group() < count ? find_target(p, writer, share, at.token, at.head) : kMasked;
  device::sync_wave();
  int head = device::shuffle(at.head, 0);
  DEVICE_ROLLED
  for (int v = 0; v < count;) {
    const int joined = p.stage.heads_join ? device::min(p.heads - head, count - v) : 1;
    const int64_t slot = device::shuffle(target, 4 * v);
    if (slot != kMasked)
      copy_run(p.stage, p.s.cache.data + slot, stage + v * p.stage.used, joined * p.stage.used);
    v += joined;
    head = 0;
  }
  device::sync_wave();
}

}  // namespace tq::encode::sm_80
