// SPDX-License-Identifier: Apache-2.0
// The end of a fast decode: the blocks' results of a sequence (decode_schedule.h) become one. A
// wave takes a head; or, where there are few heads and each has many results, a block.
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
  qsa::Divider by_heads{1};
  int sets;  // results of a slot: decode_heads_stream.h
};

// store_float() with the hardware's conversions.
DEVICE_FUNCTION void store_rounded(void* data, tk_dtype dtype, int64_t at, float x) {
  const uint32_t half = dtype == TK_F16 ? device::pack_halves<device::f16>(x, 0)
                                        : device::pack_halves<device::bf16>(x, 0);
  static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(half);
}

// Some results of a head: all loads are under way before the first is used.
template <int kFours>
struct Partials {
  static constexpr int kAhead = 8;
  float lse[kAhead];
  Four x[kAhead][kFours];  // of a lane: dimensions 4 * (lane + i * kWave) ...
};

template <int kDim, bool kShared>
DEVICE_KERNEL(kMergeThreads)
merge_partials(PartialMergeParams p) {
  constexpr int kFours = (kDim / 4 + device::kWave - 1) / device::kWave;
  constexpr int kHeadWaves = kShared ? kMergeWaves : 1;
  using Own = Partials<kFours>;
  constexpr int kStep = kHeadWaves * Own::kAhead;
  DEVICE_SHARED(float, sums, kShared ? kMergeWaves* kDim : 1);
  DEVICE_SHARED(float, totals, kMergeWaves);
  const int lane = device::lane(), wave = device::wave();
  const int member = wave % kHeadWaves;
  const int item = device::block_x() * (kMergeWaves / kHeadWaves) + wave / kHeadWaves;
  const int row = divide(item, p.by_heads);
  const int head = item - row * p.heads;
  if (row >= p.schedule.batch) return;  // whole blocks where waves meet

  const Runs runs = runs_of(p.schedule);
  const int stages = stages_of(p.schedule, row);
  const int before = stages_before(p.schedule, runs, row);
  int first = 0, parts = 0;  // of this sequence
  if (stages > 0) {
    const Cut cut = cut_of(p.schedule, runs.total);
    first = part_of(cut, before);
    parts = part_of(cut, before + stages - 1) - first + 1;
  }
  const int count = parts * p.sets;
  const auto slot = [&](int i) {
    const int of_part = p.sets == 1 ? i : i / 2, set = i - of_part * p.sets;  // at most 2
    const int part =
        parts == 1 ? 2 * p.schedule.parts + row : 2 * (first + of_part) + (of_part == 0);
    return static_cast<uint32_t>(part * p.sets + set) * static_cast<uint32_t>(p.heads) +
           static_cast<uint32_t>(head);
  };
  Own own;
  const auto load = [&](int from) {
    DEVICE_UNROLL
    for (int a = 0; a < Own::kAhead; ++a) {
      const int i = from + a * kHeadWaves;
      if (i >= count) break;
      const uint32_t at = slot(i);
      own.lse[a] = p.partial_lse[at];
      DEVICE_UNROLL
      for (int q = 0; q < kFours; ++q)
        if (const int quad = lane + q * device::kWave; quad < kDim / 4)
          own.x[a][q] = *reinterpret_cast<const Four*>(p.partial + uint64_t{at} * kDim + 4 * quad);
    }
  };

  device::wait_for_previous();
  load(member);
  float most = -device::infinity(), broken = 0;
  DEVICE_ROLLED
  for (int i = lane; i < count; i += device::kWave) {
    const float lse = p.partial_lse[slot(i)];
    if (device::isnan(lse) || lse == device::infinity()) broken = 1;
    most = device::max(most, lse);
  }
  most = device::wave_max(most);
  broken = device::wave_max(broken);

  float sum[kFours][4] = {}, total = 0;
  DEVICE_ROLLED
  for (int i = member; i < count; i += kStep) {
    if (i != member) load(i);
    DEVICE_UNROLL
    for (int a = 0; a < Own::kAhead; ++a) {
      if (i + a * kHeadWaves >= count) break;
      if (own.lse[a] == -device::infinity()) continue;  // what stands beside it means nothing
      const float weight = device::exp2_fast((own.lse[a] - most) * 1.44269504f);
      total += weight;
      DEVICE_UNROLL
      for (int q = 0; q < kFours; ++q) DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) sum[q][e] = device::fma(weight, own.x[a][q].x[e], sum[q][e]);
    }
  }
  const auto store = [&](int d, float of_all) {
    const float x = broken != 0  ? device::nan()
                    : total == 0 ? 0
                                 : of_all * device::divide(1, total);
    store_rounded(p.output.data, p.output.dtype,
                  row * p.output.stride[0] + head * p.output.stride[1] + d * p.output.stride[2], x);
  };
  const auto each = [&](auto visit) {
    DEVICE_UNROLL
    for (int q = 0; q < kFours; ++q)
      if (const int quad = lane + q * device::kWave; quad < kDim / 4) DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) visit(4 * quad + e, sum[q][e]);
  };
  if constexpr (kShared) {
    each([&](int d, float x) { sums[wave * kDim + d] = x; });
    if (lane == 0) totals[wave] = total;
    device::sync_block();
    total = 0;
    DEVICE_UNROLL
    for (int w = 0; w < kMergeWaves; ++w) total += totals[w];
    DEVICE_ROLLED
    for (int d = device::thread(); d < kDim; d += kMergeThreads) {
      float of_all = 0;
      DEVICE_UNROLL
      for (int w = 0; w < kMergeWaves; ++w) of_all += sums[w * kDim + d];
      store(d, of_all);
    }
  } else {
    each(store);
  }
  if (lane == 0 && member == 0)
    store_float(p.lse.data, TK_F32, row * p.lse.stride[0] + head * p.lse.stride[1],
                broken != 0  ? device::nan()
                : total == 0 ? -device::infinity()
                             : most + device::log(total));
}

}  // namespace tq
