// SPDX-License-Identifier: Apache-2.0
// Outputs of attend_sm_80.cu: of a whole row, and of the splits of one by a second launch.
#pragma once

#include "qsa/attend_plan.h"

namespace qsa {
namespace {

template <class T>
DEVICE_FUNCTION void store_four(const AttendParams& p, const Plan& plan, int row, int head, int dim,
                                const Four& v, float factor) {
  T* const to = element<T>(p.output, row, head, dim);
  if (plan.packed_output) {
    *reinterpret_cast<Pack<uint32_t, 8>*>(to) = {
        device::pack_halves<T>(v.x[0] * factor, v.x[1] * factor),
        device::pack_halves<T>(v.x[2] * factor, v.x[3] * factor)};
  } else {
    for (int e = 0; e < 4; ++e) to[e * p.output.stride[2]] = device::from_float<T>(v.x[e] * factor);
  }
}

DEVICE_FUNCTION void store_lse(const AttendParams& p, int row, int head, float top, float total) {
  if (p.lse.data)
    *element<float>(p.lse, row, head) =
        total == 0.0f ? -device::infinity() : top + device::log2(total);
}

DEVICE_FUNCTION float inverse(float total) {
  return total == 0.0f ? 0.0f : device::divide(1.0f, total);
}

// Of a part among others, the largest of which is relative to `top`. One without live tokens has
// no say, whatever it is relative to.
DEVICE_FUNCTION float weight_of(const Statistics& part, float top) {
  return part.total == 0.0f ? 0.0f : device::exp2_fast(part.top - top);
}

DEVICE_FUNCTION void add(Four& sum, const Four& v, float weight) {
  DEVICE_UNROLL
  for (int e = 0; e < 4; ++e) sum.x[e] = device::fma(v.x[e], weight, sum.x[e]);
}

constexpr int kMergeThreads = 128;
// One block a (row, head, kMergeDims dimensions). All partial results are loaded at once, kPerSlice
// by a thread. The first of two passes is over no splits: it brings the code into the cache while
// the launch before is still at work.
template <class T, int kMergeDims, int kPerSlice>
DEVICE_KERNEL(kMergeThreads)
merge_splits_kernel(Plan plan, AttendParams p) {
  constexpr int kMergeQuads = kMergeDims / 4;           // threads beside each other
  constexpr int kSlices = kMergeThreads / kMergeQuads;  // splits at once
  constexpr int kMost = kSlices * kPerSlice, kPerLane = (kMost + device::kWave - 1) / device::kWave;
  static_assert(kPerLane <= kMaxSplits / device::kWave);
  DEVICE_SHARED(float, weights, kMergeThreads* kPerLane);  // each wave has all
  DEVICE_SHARED(Four, sums, kMergeThreads);
  const int dims = int(p.q.size[2]), parts = dims / kMergeDims, heads = plan.kv_heads * plan.group;
  int block = device::block_x();
  const int part = block % parts;
  block /= parts;
  const int head = block % heads, row = block / heads;
  const int64_t unit = int64_t(row) * plan.kv_heads + head / plan.group;
  const int64_t first = unit * plan.splits * plan.group + head % plan.group;  // of split 0
  const int thread = device::thread(), slice = thread / kMergeQuads, quad = thread % kMergeQuads;
  const int lane = device::lane(), first_weight = device::wave() * device::kWave * kPerLane;
  const float* const from =
      plan.partial + (first + int64_t(slice) * plan.group) * dims + part * kMergeDims + quad * 4;
  const Statistics* const of_lane = plan.statistics + first + int64_t(lane) * plan.group;
  const int step = plan.group * dims;

  DEVICE_ROLLED
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) device::wait_for_previous();
    const int splits = pass == 1 ? plan.splits : 0;
    Statistics of[kPerLane];
    Four ahead[kPerSlice];
    DEVICE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      of[i] = {-device::infinity(), 0.0f};
      if (i * device::kWave + lane < splits) of[i] = of_lane[i * device::kWave * plan.group];
    }
    DEVICE_UNROLL
    for (int i = 0; i < kPerSlice; ++i)
      if (i * kSlices + slice < splits)
        ahead[i] = *reinterpret_cast<const Four*>(from + int64_t(i * kSlices) * step);
    float top = of[0].top, total = 0.0f;
    DEVICE_UNROLL
    for (int i = 1; i < kPerLane; ++i) top = device::max(top, of[i].top);
    top = device::wave_max(top);
    DEVICE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const float weight = weight_of(of[i], top);
      weights[first_weight + i * device::kWave + lane] = weight;
      total = device::fma(of[i].total, weight, total);
    }
    total = device::wave_sum(total);
    device::sync_wave();
    Four sum{};
    DEVICE_UNROLL
    for (int i = 0; i < kPerSlice; ++i)
      if (i * kSlices + slice < splits)
        add(sum, ahead[i], weights[first_weight + i * kSlices + slice]);
    sums[thread] = sum;
    device::sync_block();
    if (thread < kMergeQuads) {
      Four all{};
      DEVICE_UNROLL
      for (int s = 0; s < kSlices; ++s) add(all, sums[s * kMergeQuads + thread], 1.0f);
      const float factor = inverse(total);
      if (pass == 1) store_four<T>(p, plan, row, head, part * kMergeDims + thread * 4, all, factor);
    }
    if (pass == 1 && thread == 0 && part == 0) store_lse(p, row, head, top, total);
    device::sync_block();
  }
}

}  // namespace
}  // namespace qsa
