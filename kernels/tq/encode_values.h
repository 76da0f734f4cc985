// SPDX-License-Identifier: Apache-2.0
// Values of encode_sm_80.cu: a lane quantises a vector of its own.
#pragma once

#include "tq/encode_work.h"

namespace tq::encode::sm_80 {

// This lane's value from the tile to the stage. False: it takes the definition's path.
template <class T>
DEVICE_FUNCTION bool encode_value_of_lane(const Params& p, const Buffers& b) {
  const SlotFormat& f = p.s.format;
  const auto* row = reinterpret_cast<const Halves8*>(b.tile + device::lane() * p.tile_pitch);
  uint8_t* slot = b.stage + device::lane() * p.stage.used;
  const int pieces = f.head_dim / 8;
  Halves8 least = device::load16<Halves8>(row), most = least;
  DEVICE_ROLLED
  for (int i = 1; i < pieces; ++i) {
    const Halves8 x = device::load16<Halves8>(row + i);
    DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      least.pair[n] = device::min_halves<T>(least.pair[n], x.pair[n]);
      most.pair[n] = device::max_halves<T>(most.pair[n], x.pair[n]);
    }
  }
  DEVICE_UNROLL
  for (int n = 2; n > 0; n /= 2) DEVICE_UNROLL
  for (int i = 0; i < n; ++i) {
    least.pair[i] = device::min_halves<T>(least.pair[i], least.pair[i + n]);
    most.pair[i] = device::max_halves<T>(most.pair[i], most.pair[i + n]);
  }
  const float low = device::min(half_of<T>(least, 0), half_of<T>(least, 1));
  const float high = device::max(half_of<T>(most, 0), half_of<T>(most, 1));
  // NaN and inf have reached the pairs, but min and max drop a NaN.
  const float all = device::abs(half_of<T>(least, 0)) + device::abs(half_of<T>(least, 1)) +
                    device::abs(half_of<T>(most, 0)) + device::abs(half_of<T>(most, 1));
  const float levels = static_cast<float>((1 << f.value_bits) - 1);
  const float range = high - low;
  const float scale = device::max(device::divide(range, levels), 1e-8f);
  const float steps = scale > 1e-8f ? device::divide(levels, range) : 1e8f;
  const uint32_t radix = 1u << f.value_bits;
  // Exponents of the whole numbers, added up in packing.
  const uint32_t wholes = 0x4b000000u * (f.value_bits == 4 ? 0x11111111u : 0x249249u);
  DEVICE_ROLLED
  for (int i = 0; i < pieces; ++i) {
    const Halves8 x = device::load16<Halves8>(row + i);
    uint32_t word = 0;
    DEVICE_UNROLL
    for (int e = kGroup - 1; e >= 0; --e)
      word = word * radix +
             device::bit_cast<uint32_t>(device::fma(half_of<T>(x, e) - low, steps, kWhole));
    stage_codes(slot, f.value_at + i * f.value_bits, f.value_bits, word - wholes);
  }
  stage_half(slot, f.scale_at, scale);
  stage_half(slot, f.zero_at, low);
  return all < device::infinity() && device::max(device::abs(low), scale) < kHalfOverflows;
}
// The wave settles the vectors of lanes that ask for it.
DEVICE_FUNCTION void settle_values(const Params& p, int64_t source, bool hard, const Buffers& b) {
  if (!device::any(hard)) return;
  device::sync_wave();
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = device::shuffle(source, v);
    if (device::shuffle(static_cast<int>(hard), v) && device::lane() * kGroup < p.s.format.head_dim)
      encode_value(p.s, Slot{b.stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
}

}  // namespace tq::encode::sm_80
