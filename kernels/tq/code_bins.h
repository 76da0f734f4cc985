// SPDX-License-Identifier: Apache-2.0
// The code of a rotated, normalised key element: how many midpoints of centroids it reaches. 32
// bins over the midpoints, one look-up and one comparison an element; the table lies in a register
// of the lanes of a wave, an entry a lane. A codebook whose midpoints lie too close for that (none
// of the known ones) is left to the definition.
#pragma once

#include "device/nvidia.h"
#include "tq/encode_item.h"

namespace tq::encode {

inline constexpr int kBins = 32;
inline constexpr int kMostMidpoints = 15;

// Shared memory of a block.
struct CodeBins {
  uint32_t bin[kBins];  // the midpoint in the bin, not above it; its low bits: 15 - the code there
  float midpoint[kMostMidpoints + 1];
  float slope, offset;  // bin of u: round(31 saturate(u * slope + offset))
  float highest;        // magnitude of a midpoint
  float margin;         // by which bins overlap; 0: two midpoints share a bin
  int midpoints;
};

// The float nearest to `x` whose 4 low bits are `mark`, off by 2^-20 of itself; for 0 one below.
DEVICE_FUNCTION uint32_t marked(float x, uint32_t mark) {
  const uint32_t bits = device::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 16) return 0x80000000u | mark;
  return (bits & 0x80000000u) | ((magnitude - mark + 8) & ~15u) | mark;
}

// By a wave of kBins lanes; `mine`: what load_midpoint gave this lane.
DEVICE_FUNCTION float load_midpoint(const Codebook& book, int levels) {
  return midpoint(book, device::min(device::lane(), levels - 2));
}
DEVICE_FUNCTION void fill_bins(CodeBins* bins, float mine, int levels) {
  const int b = device::lane();
  const int count = levels - 1;
  if (b < count) bins->midpoint[b] = mine;
  const float low = device::shuffle(mine, 0), high = device::shuffle(mine, count - 1);
  const float width = (high - low) / (kBins - 1);
  const float margin = width / kBins;
  const float centre = low + static_cast<float>(b) * width;
  const float from = b == 0 ? -device::infinity() : centre - width / 2 - margin;
  const float to = b == kBins - 1 ? device::infinity() : centre + width / 2 + margin;
  uint32_t below = 0, inside = 0;
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
  bins->bin[b] = marked(there, 15 - (below + inside));
  const bool apart = device::all(inside <= 1 && low > -1e4f && high < 1e4f);
  if (b == 0) {
    bins->slope = device::divide(1.0f, high - low);
    bins->offset = -low * bins->slope;
    bins->highest = device::max(device::abs(low), device::abs(high));
    bins->margin = apart ? margin : 0;
    bins->midpoints = count;
  }
}

// An element that near to a midpoint is looked at again in double: `error` is how far it may be
// off, `scaling` what comes on top in units of the midpoint.
DEVICE_FUNCTION float close_to_midpoints(const CodeBins& bins, float error, float scaling) {
  return error + bins.highest * (scaling + 0x1p-20f);
}
DEVICE_FUNCTION bool usable(const CodeBins& bins, float close) { return bins.margin > 2 * close; }

struct Nearest {
  float over;     // the midpoint of the bin; where it is small, it is right
  uint32_t word;  // of the bin
};
// Of u = x * unit; slope: times unit. `table`: this lane's bin.
DEVICE_FUNCTION Nearest find_bin(float table, float slope, float offset, float x, float unit) {
  constexpr float kWhole = 8388608;  // 2^23: adding it rounds to a whole number
  const float place = device::saturate(device::fma(x, slope, offset));
  const uint32_t index = device::bit_cast<uint32_t>(device::fma(place, kBins - 1, kWhole));
  const float word = device::lookup32(table, index);
  return {device::fma(x, unit, -word), device::bit_cast<uint32_t>(word)};
}

}  // namespace tq::encode
