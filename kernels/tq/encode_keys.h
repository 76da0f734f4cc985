// SPDX-License-Identifier: Apache-2.0
// Centroid codes of encode_sm_80.cu: rotated keys to codes, and again in double near a midpoint.
#pragma once

#include "tq/encode_work.h"

namespace tq::encode::sm_80 {

// The code of one element in double, by a wave.
DEVICE_FUNCTION uint32_t exact_code(const Source& s, const CodeBins& bins, int64_t key, int dim) {
  double y = 0, squares = 0;
  DEVICE_ROLLED
  for (int j = device::lane(); j < s.format.head_dim; j += device::kWave) {
    const double x = load_float(s.key.data, s.key.dtype, key + j);
    y += x * static_cast<double>(s.pi.data[dim * s.pi.stride[0] + j]);
    squares += x * x;
  }
  y = device::wave_sum(y);
  squares = device::wave_sum(squares);
  const double norm = square_root(squares) + 1e-8;
  const bool reached =
      device::lane() < bins.midpoints &&
      y >= static_cast<double>(bins.midpoint[device::lane() % kMostMidpoints]) * norm;
  return static_cast<uint32_t>(device::popcount(device::ballot(reached)));
}

DEVICE_FUNCTION void patch_code(uint8_t* slot, int bits, int dim, uint32_t code) {
  const int shift = dim * bits % 8;
  uint8_t* at = slot + dim * bits / 8;
  const uint32_t mask = ((1u << bits) - 1) << shift, moved = code << shift;
  at[0] = static_cast<uint8_t>((at[0] & ~mask) | moved);
  if (shift + bits > 8) at[1] = static_cast<uint8_t>((at[1] & ~(mask >> 8)) | moved >> 8);
}

// Elements of a wave that lie near a midpoint, in shared memory.
inline constexpr int kNearRoom = 63;
struct NearList {
  int count;               // may be beyond the room
  int element[kNearRoom];  // vector * 256 + dim
};

// What a lane needs to know of its key.
struct KeyScale {
  float unit;   // of sums of products, to elements of the rotated unit vector
  float close;  // of the bins; below 0: no element may be near
  bool hard;    // takes the definition's path
};

template <class T>
DEVICE_FUNCTION bool is_zero(const Params& p, int64_t source) {
  const auto* x = reinterpret_cast<const Halves8*>(static_cast<const T*>(p.s.key.data) + source);
  uint32_t bits = 0;
  DEVICE_ROLLED
  for (int i = 0; i < p.s.format.head_dim / 8; ++i)
    bits |= x[i].pair[0] | x[i].pair[1] | x[i].pair[2] | x[i].pair[3];
  return (bits & 0x7fff7fffu) == 0;
}

template <class T>
DEVICE_FUNCTION KeyScale scale_key(const Params& p, const Buffers& b, float squares, float unit,
                                   float close, int64_t source) {
  const float norm = device::sqrt(squares);
  stage_half(b.stage + device::lane() * p.stage.used, p.s.format.norm_at,
             device::min(norm, kMostHalf));
  KeyScale k{device::divide(unit, norm + 1e-8f), close,
             !(squares > 0x1p-100f && squares < 0x1p100f)};
  if (k.hard) {
    k.close = -1;
    k.hard = !is_zero<T>(p, source);
  }
  return k;
}

// 32 elements from `first` on of this lane's rotated key.
DEVICE_FUNCTION void encode_sums_of_lane(const Params& p, const CodeBins& bins, const Buffers& b,
                                         const KeyScale& k, int first, NearList* list) {
  const int bits = p.s.format.key_bits;
  const float slope = bins.slope * k.unit, offset = bins.offset;
  const bool usable = bins.usable != 0;
  const uint32_t radix = 1u << bits;
  DEVICE_ROLLED
  for (int part = 0; part < 4; ++part) {
    const auto* four =
        reinterpret_cast<const Floats4*>(b.sums + device::lane() * kSumPitch + part * kGroup);
    const Floats4 lower = device::load16<Floats4>(four), upper = device::load16<Floats4>(four + 1);
    uint32_t word = 0;
    float nearest = device::infinity();
    if (usable) {
      DEVICE_UNROLL
      for (int e = kGroup - 1; e >= 0; --e) {
        const float x = e < 4 ? lower.x[e] : upper.x[e - 4];
        const NearCode found = code_by_bin(bins.bin, slope, offset, x, k.unit);
        word = word * radix + found.code;
        nearest = device::min(nearest, found.distance);
      }
    }
    if (!usable || nearest < k.close) {
      word = 0;
      DEVICE_ROLLED
      for (int e = kGroup - 1; e >= 0; --e) {
        const float x = b.sums[device::lane() * kSumPitch + part * kGroup + e];
        const NearCode found = usable ? code_by_bin(bins.bin, slope, offset, x, k.unit)
                                      : code_by_search(bins, x * k.unit);
        word = word * radix + found.code;
        if (!(found.distance < k.close)) continue;
        const int n = device::atomic_add(&list->count, 1);
        if (n < kNearRoom) list->element[n] = device::lane() * 256 + first + part * kGroup + e;
      }
    }
    stage_codes(b.stage + device::lane() * p.stage.used, (first / kGroup + part) * bits, bits,
                word);
  }
}

template <class T, int D>
DEVICE_FUNCTION void load_keys(const Params& p, int64_t source, Vectors32<D>& x) {
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t at = device::shuffle(source, device::lane() / 4 + 8 * i);
    const auto* row = reinterpret_cast<const Halves8*>(static_cast<const T*>(p.s.key.data) + at);
    DEVICE_UNROLL
    for (int from = 0; from < D / 32; ++from)
      x.of[i][from] = device::load16<Halves8>(row + from * 4 + device::lane() % 4);
  }
}

DEVICE_FUNCTION void store_sums(const float (&sum)[2][4][4], float* sums) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  DEVICE_UNROLL
  for (int tile = 0; tile < 2; ++tile) DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    struct alignas(8) Two {
      float x[2];
    };
    *reinterpret_cast<Two*>(sums + (16 * tile + 8 * half + group) * kSumPitch + 8 * n +
                            2 * member) = {sum[tile][n][2 * half], sum[tile][n][2 * half + 1]};
  }
}

// Every key that may be wrong, once the stage is written.
DEVICE_FUNCTION void settle_keys(const Params& p, const CodeBins& bins, int64_t source, bool hard,
                                 NearList* list, const Buffers& b) {
  device::sync_wave();
  const int count = list->count;
  if (count == 0 && !device::any(hard)) return;
  const bool full = count > kNearRoom;
  DEVICE_ROLLED
  for (int n = 0; n < count && !full; ++n) {
    const int vector = list->element[n] / 256, dim = list->element[n] % 256;
    const uint32_t code = exact_code(p.s, bins, device::shuffle(source, vector), dim);
    if (device::lane() == 0)
      patch_code(b.stage + vector * p.stage.used, p.s.format.key_bits, dim, code);
  }
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = device::shuffle(source, v);
    if ((device::shuffle(static_cast<int>(hard), v) || full) &&
        device::lane() * kGroup < p.s.format.head_dim)
      encode_centroid_key(p.s, Slot{b.stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
  device::sync_wave();
  if (device::lane() == 0) list->count = 0;
}

}  // namespace tq::encode::sm_80
