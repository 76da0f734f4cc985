// SPDX-License-Identifier: Apache-2.0
// Slots of a wave's vectors, assembled in shared memory and written to the cache in the largest
// pieces that its alignment permits: slots are only 2-byte aligned, but the slots of all heads of a
// token are mostly a multiple of 16 bytes.
#pragma once

#include <numeric>

#include "device/nvidia.h"
#include "tq/slot_codes.h"

namespace tq {

// How slots leave the stage. A run is a number of neighbouring vectors whose slots are neighbours
// in the cache too: the heads of a token, or a single vector.
struct StageFormat {
  int used;         // bytes of a slot that carry something; slots of the stage follow each other
  int piece;        // bytes written at once: 16, 4 or 2
  bool heads_join;  // the slots of a token's heads follow each other in the cache
};

// `vectors`: of a stage. Needs slots aligned to 2 bytes.
inline StageFormat stage_format(const Cache& cache, const SlotFormat& format, int64_t heads,
                                int vectors) {
  StageFormat s{};
  s.used = format.zero_at + 2;
  s.heads_join = cache.stride[2] == s.used || heads == 1;
  int64_t common = 16;
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(cache.data) % 16);
  for (int64_t n : {address, cache.stride[0], cache.stride[1]}) common = std::gcd(common, n);
  // Joined runs begin at multiples of `step` heads, in the token and in the stage.
  const int64_t step = std::gcd(int64_t{vectors}, heads);
  if (s.heads_join)
    common = std::gcd(common, step * s.used);
  else
    common = std::gcd(std::gcd(common, cache.stride[2]), int64_t{s.used});
  s.piece = common == 16 ? 16 : common % 4 == 0 ? 4 : 2;
  return s;
}

DEVICE_FUNCTION void stage_u16(uint8_t* stage, int at, uint32_t bits) {
  *reinterpret_cast<uint16_t*>(stage + at) = static_cast<uint16_t>(bits);
}
DEVICE_FUNCTION void stage_half(uint8_t* stage, int at, float x) {
  stage_u16(stage, at, device::pack_halves<device::f16>(x, 0));
}

// The codes of 8 elements to byte `at` of the stage; 3 bits end anywhere.
DEVICE_FUNCTION void stage_codes(uint8_t* stage, int at, int bits, uint32_t word) {
  if (bits == 4) {
    stage_u16(stage, at, word);
    stage_u16(stage, at + 2, word >> 16);
  } else {
    DEVICE_UNROLL
    for (int i = 0; i < 3; ++i) stage[at + i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

template <class Piece>
DEVICE_FUNCTION void copy_pieces(uint8_t* to, const uint8_t* from, int bytes) {
  constexpr int kBytes = sizeof(Piece);
  DEVICE_ROLLED
  for (int at = device::lane() * kBytes; at < bytes; at += device::kWave * kBytes)
    *reinterpret_cast<Piece*>(to + at) = *reinterpret_cast<const Piece*>(from + at);
}
// Two a lane at a time: what is read last hides behind what is written first.
DEVICE_FUNCTION void copy_pieces16(uint8_t* to, const uint8_t* from, int bytes) {
  constexpr int kStep = device::kWave * 16, kAhead = 2;
  DEVICE_ROLLED
  for (int at = device::lane() * 16; at < bytes; at += kAhead * kStep) {
    device::Words4 x[kAhead];
    DEVICE_UNROLL
    for (int i = 0; i < kAhead; ++i)
      if (at + i * kStep < bytes) x[i] = device::load16<device::Words4>(from + at + i * kStep);
    DEVICE_UNROLL
    for (int i = 0; i < kAhead; ++i)
      if (at + i * kStep < bytes) device::store16(to + at + i * kStep, x[i]);
  }
}
// A run, by a wave.
DEVICE_FUNCTION void copy_run(const StageFormat& s, uint8_t* to, const uint8_t* from, int bytes) {
  if (s.piece == 16)
    copy_pieces16(to, from, bytes);
  else if (s.piece == 4)
    copy_pieces<uint32_t>(to, from, bytes);
  else
    copy_pieces<uint16_t>(to, from, bytes);
}

}  // namespace tq
