// SPDX-License-Identifier: Apache-2.0
// Reductions over a wave and over a block, written once for every backend.
#pragma once

// A backend that reports call sites hands them through with these; the others leave them empty.
#ifndef DEVICE_SITE
#define DEVICE_SITE
#define DEVICE_SITE_ALONE
#define DEVICE_SITE_PARAMETER
#endif

namespace device {

struct Sum {
  template <class T>
  DEVICE_FUNCTION T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  DEVICE_FUNCTION T operator()(T a, T b) const {
    return max(a, b);
  }
};
struct Min {
  template <class T>
  DEVICE_FUNCTION T operator()(T a, T b) const {
    return min(a, b);
  }
};

#ifndef DEVICE_WAVE_REDUCE
template <class T, class Combine>
DEVICE_FUNCTION T wave_reduce(T v, Combine combine DEVICE_SITE_PARAMETER) {
  DEVICE_UNROLL
  for (int mask = kWave / 2; mask > 0; mask /= 2) v = combine(v, shuffle_xor(v, mask DEVICE_SITE));
  return v;
}
#endif

template <class T>
DEVICE_FUNCTION T wave_sum(T v DEVICE_SITE_PARAMETER) {
  return wave_reduce(v, Sum() DEVICE_SITE);
}
// Floats follow the fmax rule: a NaN in some lanes does not reach the result, a NaN in all lanes
// does.
template <class T>
DEVICE_FUNCTION T wave_max(T v DEVICE_SITE_PARAMETER) {
  return wave_reduce(v, Max() DEVICE_SITE);
}
template <class T>
DEVICE_FUNCTION T wave_min(T v DEVICE_SITE_PARAMETER) {
  return wave_reduce(v, Min() DEVICE_SITE);
}

// Over the block; every thread gets the result. `scratch`: a shared array of at least 32 elements
// of T. It may hold something that other threads still read: the first barrier waits for them;
// after the call it is free again.
template <class T, class Scratch>
DEVICE_FUNCTION T block_sum(T v, Scratch& scratch DEVICE_SITE_PARAMETER) {
  v = wave_sum(v DEVICE_SITE);
  sync_block(DEVICE_SITE_ALONE);
  if (lane() == 0) scratch[wave()] = v;
  sync_block(DEVICE_SITE_ALONE);
  T sum = scratch[0];
  for (int w = 1; w < waves(); ++w) sum += T(scratch[w]);
  sync_block(DEVICE_SITE_ALONE);
  return sum;
}

template <class T, class Scratch>
DEVICE_FUNCTION T block_max(T v, Scratch& scratch DEVICE_SITE_PARAMETER) {
  v = wave_max(v DEVICE_SITE);
  sync_block(DEVICE_SITE_ALONE);
  if (lane() == 0) scratch[wave()] = v;
  sync_block(DEVICE_SITE_ALONE);
  T best = scratch[0];
  for (int w = 1; w < waves(); ++w) best = max(best, T(scratch[w]));
  sync_block(DEVICE_SITE_ALONE);
  return best;
}

}  // namespace device
