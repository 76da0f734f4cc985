// SPDX-License-Identifier: Apache-2.0
// The ends of a fast decode with little work (decode_few.h): results of waves, and then of blocks,
// become one. A result is a sum of weighted values and the sum of the weights, both relative to its
// largest score. A wave has one head, a lane one dimension of it.
#pragma once

#include "tq/decode_few_plan.h"
#include "tq/decode_merge.h"

namespace tq {

struct FewMean {
  float top, total, sum;
};

// Of all waves of the block. `statistics`: of the head; `numbers`: of the head and dimension, in
// shared memory, kStep bytes between waves.
template <int kStep>
DEVICE_FUNCTION FewMean average_waves(const Statistics* statistics, const uint8_t* numbers) {
  constexpr int kAtOnce = 4;  // waves are a multiple of it
  const int lane = device::lane(), waves = device::waves();
  Statistics own{-device::infinity(), 0};
  if (lane < waves) own = statistics[lane * kFewHeads];
  FewMean mean{device::wave_max(own.top), 0, 0};
  const float weight = lane < waves ? device::exp2_fast(own.top - mean.top) : 0;
  mean.total = device::wave_sum(own.total * weight);
  DEVICE_ROLLED
  for (int first = 0; first < waves; first += kAtOnce, numbers += kAtOnce * kStep) {
    DEVICE_UNROLL
    for (int w = 0; w < kAtOnce; ++w)
      mean.sum = device::fma(device::shuffle(weight, first + w),
                             *reinterpret_cast<const float*>(numbers + w * kStep), mean.sum);
  }
  return mean;
}

// Of `count` blocks, `step` heads between them; a head has `dim` numbers.
DEVICE_FUNCTION FewMean average_parts(int count, const Statistics* statistics, const float* numbers,
                                      int step, int dim) {
  constexpr int kAhead = 16;  // numbers are under way at once
  const int lane = device::lane();
  float x[kAhead];
  Statistics own{-device::infinity(), 0};
  if (lane < count) own = statistics[int64_t{lane} * step];
  FewMean mean{-device::infinity(), 0, 0};
  float weight = 0;
  DEVICE_ROLLED
  for (int first = 0; first < count; first += kAhead) {
    DEVICE_UNROLL
    for (int a = 0; a < kAhead; ++a)
      x[a] = first + a < count ? numbers[int64_t{first + a} * step * dim] : 0;
    if (first == 0) {
      mean.top = own.top;
      DEVICE_ROLLED
      for (int i = lane + device::kWave; i < count; i += device::kWave)
        mean.top = device::max(mean.top, statistics[int64_t{i} * step].top);
      mean.top = device::wave_max(mean.top);
    }
    if (first % device::kWave == 0) {
      const bool inside = first + lane < count;
      if (inside && first > 0) own = statistics[int64_t{first + lane} * step];
      weight = inside ? device::exp2_fast(own.top - mean.top) : 0;
      mean.total = device::fma(inside ? own.total : 0, weight, mean.total);
    }
    DEVICE_UNROLL
    for (int a = 0; a < kAhead; ++a)
      mean.sum = device::fma(device::shuffle(weight, (first + a) % device::kWave), x[a], mean.sum);
  }
  mean.total = device::wave_sum(mean.total);
  return mean;
}

DEVICE_FUNCTION void store_mean(const FewParams& p, int row, int head, int d, const FewMean& mean) {
  const bool none = mean.total == 0;  // a NaN total is not 0 and makes the head NaN
  const Strided<3>& out = p.output;
  store_rounded(out.data, out.dtype, row * out.stride[0] + head * out.stride[1] + d * out.stride[2],
                none ? 0 : mean.sum * device::divide(1, mean.total));
  constexpr float kLn2 = 0.693147180559945309f;
  if (d == 0)
    store_float(p.lse.data, TK_F32, row * p.lse.stride[0] + head * p.lse.stride[1],
                none ? -device::infinity() : (mean.top + device::log2(mean.total)) * kLn2);
}
// Of a sequence without tokens.
template <int kDim>
DEVICE_FUNCTION void store_empty(const FewParams& p, const FewUnit& unit, int row) {
  DEVICE_ROLLED
  for (int i = device::thread(); i < unit.heads * kDim; i += device::threads())
    store_mean(p, row, unit.first_head + i / kDim, i % kDim, FewMean{});
}

}  // namespace tq
