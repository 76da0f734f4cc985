// SPDX-License-Identifier: Apache-2.0
// The code of a rotated, normalised key element: how many midpoints of centroids it reaches. 32
// bins over the midpoints, one look-up and one comparison an element; a table of one word per bank
// of shared memory, so that no two lanes get into each other's way. A codebook whose midpoints lie
// too close for that (none of the known ones) is searched one by one.
#pragma once

#include "device/nvidia.h"
#include "tq/encode_item.h"

namespace tq::encode {

inline constexpr int kBins = 32;
inline constexpr int kMostMidpoints = 15;

// Shared memory of a block.
struct CodeBins {
  uint32_t
      bin[kBins];  // the midpoint in the bin, not above it; its low bits: the code from there on
  float midpoint[kMostMidpoints + 1];
  float slope, offset;  // bin of u: round(31 saturate(u * slope + offset))
  float close;          // an element that near to a midpoint is looked at again in double
  int midpoints;
  int usable;
};

// The float nearest to `x` whose 4 low bits are `code`; for 0 one below it.
DEVICE_FUNCTION uint32_t marked(float x, uint32_t code) {
  const uint32_t bits = device::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 16) return 0x80000000u | code;
  return (bits & 0x80000000u) | ((magnitude - code + 8) & ~15u) | code;
}

// The first wave of a block, of kBins lanes; `error`: how far u may be off, and beside a midpoint
// in units of it.
DEVICE_FUNCTION void fill_bins(CodeBins* bins, const Codebook& book, int levels, float error,
                               float scaling) {
  const int b = device::lane();
  const int count = levels - 1;
  const float mine = midpoint(book, b < count ? b : count - 1);
  if (b < count) bins->midpoint[b] = mine;
  const float low = device::shuffle(mine, 0), high = device::shuffle(mine, count - 1);
  // Marked midpoints are off by 2^-20 of themselves.
  const float close =
      error + device::max(device::abs(low), device::abs(high)) * (scaling + 0x1p-20f);
  const float width = (high - low) / (kBins - 1);
  const float margin = width / kBins;
  const float centre = low + static_cast<float>(b) * width;
  const float from = b == 0 ? -device::infinity() : centre - width / 2 - margin;
  const float to = b == kBins - 1 ? device::infinity() : centre + width / 2 + margin;
  int below = 0, inside = 0;
  float there = -1e30f;
  DEVICE_ROLLED
  for (int c = 0; c < count; ++c) {
    const float m = device::shuffle(mine, c);
    below += m < from;
    if (m >= from && m <= to) {
      there = m;
      ++inside;
    }
  }
  bins->bin[b] = marked(there, static_cast<uint32_t>(below + inside));
  const bool usable = device::all(inside <= 1 && margin > 2 * close && low > -1e4f && high < 1e4f);
  if (b == 0) {
    bins->slope = device::divide(1.0f, high - low);
    bins->offset = -low * bins->slope;
    bins->close = close;
    bins->midpoints = count;
    bins->usable = usable;
  }
}

struct NearCode {
  uint32_t code;
  float distance;  // to the midpoint next to it; where it is small, it is right
};

// Of u = x * unit; slope: times unit.
template <class Bins>
DEVICE_FUNCTION NearCode code_by_bin(const Bins& bins, float slope, float offset, float x,
                                     float unit) {
  constexpr float kWhole = 8388608;  // 2^23: adding it rounds to a whole number
  const float place = device::saturate(device::fma(x, slope, offset));
  const uint32_t index = device::bit_cast<uint32_t>(device::fma(place, kBins - 1, kWhole));
  const uint32_t word = bins[index & (kBins - 1)];
  const float over = device::fma(x, unit, -device::bit_cast<float>(word));
  return {(word & 15) + static_cast<uint32_t>(device::bit_cast<int32_t>(over) >> 31),
          device::abs(over)};
}

DEVICE_FUNCTION NearCode code_by_search(const CodeBins& bins, float u) {
  NearCode found{0, device::infinity()};
  DEVICE_ROLLED
  for (int c = 0; c < bins.midpoints; ++c) {
    const float over = u - bins.midpoint[c];
    found.code += over >= 0;
    found.distance = device::min(found.distance, device::abs(over));
  }
  return found;
}

}  // namespace tq::encode
