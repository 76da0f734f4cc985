// SPDX-License-Identifier: Apache-2.0
// The end of a fast decode: the blocks' results of a sequence (decode_schedule.h) become one. A
// wave takes a head; or, where sequences have many results and there are few heads, all waves of a
// block take 32 dimensions of it.
#pragma once

#include "device/nvidia.h"
#include "tq/decode_schedule.h"

namespace tq {

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeWaves = kMergeThreads / device::kWave;

struct PartialMergeParams {
  Schedule schedule;
  const float* partial;      // [2 * parts + B][sets][Hq][D], normalised
  const float* partial_lse;  // [2 * parts + B][sets][Hq], natural
  Strided<3> output;
  Strided<2> lse;
  int heads;  // Hq
  int sets;   // results of a slot: decode_heads_stream.h
};

inline constexpr int dim_chunks(int head_dim) {
  return (head_dim + device::kWave - 1) / device::kWave;
}

// store_float() with the hardware's conversions.
DEVICE_FUNCTION void store_rounded(void* data, tk_dtype dtype, int64_t at, float x) {
  const uint32_t half = dtype == TK_F16 ? device::pack_halves<device::f16>(x, 0)
                                        : device::pack_halves<device::bf16>(x, 0);
  static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(half);
}

template <int kDim, bool kShared>
DEVICE_KERNEL(kMergeThreads)
merge_partials(PartialMergeParams p) {
  constexpr int kOwn = kShared ? 1 : dim_chunks(kDim);  // of a lane: lane + i * kWave
  constexpr int kHeadWaves = kShared ? kMergeWaves : 1;
  DEVICE_SHARED(float, sums, kMergeWaves* device::kWave);
  DEVICE_SHARED(float, totals, kMergeWaves);
  const int lane = device::lane(), wave = device::wave();
  const int member = wave % kHeadWaves;
  const int64_t item = int64_t{device::block_x()} * (kMergeWaves / kHeadWaves) + wave / kHeadWaves;
  const bool inside = item < int64_t{p.schedule.batch} * p.heads;  // else idle, but at the barrier
  const int row = inside ? static_cast<int>(item / p.heads) : 0;
  const int head = static_cast<int>(item % p.heads);

  const Runs runs = runs_of(p.schedule);
  const int stages = stages_of(p.schedule, row);
  const int before = stages_before(p.schedule, runs, row);
  int first = 0, count = 0;  // parts of this sequence
  if (stages > 0) {
    const Cut cut = cut_of(p.schedule, runs.total);
    first = part_of(cut, before);
    count = part_of(cut, before + stages - 1) - first + 1;
  }
  const int parts = count;
  count *= p.sets;
  device::wait_for_previous();
  const auto slot = [&](int i) {
    const int of_part = p.sets == 1 ? i : i / 2, set = i - of_part * p.sets;  // at most 2
    const int64_t part = parts == 1 ? int64_t{2} * p.schedule.parts + row
                                    : int64_t{2} * (first + of_part) + (of_part == 0);
    return (part * p.sets + set) * p.heads + head;
  };

  float most = -device::infinity(), broken = 0;
  if (count > 0) DEVICE_ROLLED
  for (int i = lane; i < count; i += device::kWave) {
    const float lse = p.partial_lse[slot(i)];
    if (device::isnan(lse) || lse == device::infinity()) broken = 1;
    most = device::max(most, lse);
  }
  most = device::wave_max(most);
  broken = device::wave_max(broken);

  const int first_d = device::block_y() * device::kWave;
  const auto d_of = [&](int e) { return first_d + lane + e * device::kWave; };
  float sum[kOwn] = {}, total = 0;
  if (most > -device::infinity()) {
    constexpr int kAhead = kShared ? 16 : 8;  // loads of so many partials are under way at once
    DEVICE_ROLLED
    for (int i = member; i < count; i += kHeadWaves * kAhead) {
      float lse[kAhead], x[kAhead][kOwn];
      DEVICE_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int part = i + a * kHeadWaves;
        lse[a] = -device::infinity();
        if (part >= count) continue;
        lse[a] = p.partial_lse[slot(part)];
        DEVICE_UNROLL
        for (int e = 0; e < kOwn; ++e)
          x[a][e] = d_of(e) < kDim ? p.partial[slot(part) * kDim + d_of(e)] : 0;
      }
      DEVICE_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        if (lse[a] == -device::infinity()) continue;
        const float weight = device::exp(lse[a] - most);
        total += weight;
        DEVICE_UNROLL
        for (int e = 0; e < kOwn; ++e) sum[e] = device::fma(weight, x[a][e], sum[e]);
      }
    }
  }
  if constexpr (kShared) {
    sums[wave * device::kWave + lane] = sum[0];
    if (lane == 0) totals[wave] = total;
    device::sync_block();
    if (member != 0) return;
    DEVICE_UNROLL
    for (int w = 1; w < kMergeWaves; ++w)
      total += totals[w], sum[0] += sums[w * device::kWave + lane];
  }
  if (!inside) return;
  const bool none = total == 0;
  const float inverse = device::divide(1, total);
  DEVICE_UNROLL
  for (int e = 0; e < kOwn; ++e)
    if (d_of(e) < kDim)
      store_rounded(
          p.output.data, p.output.dtype,
          row * p.output.stride[0] + head * p.output.stride[1] + d_of(e) * p.output.stride[2],
          broken != 0 ? device::nan()
          : none      ? 0
                      : sum[e] * inverse);
  if (lane == 0 && first_d == 0)
    store_float(p.lse.data, TK_F32, row * p.lse.stride[0] + head * p.lse.stride[1],
                broken != 0 ? device::nan()
                : none      ? -device::infinity()
                            : most + device::log(total));
}

}  // namespace tq
