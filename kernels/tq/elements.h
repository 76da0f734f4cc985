// SPDX-License-Identifier: Apache-2.0
// Tensors as kernels see them: an address, strides in elements, a dtype looked at when an element
// is touched. One kernel instance so serves every float and index dtype.
#pragma once

#include "device/device.h"
#include "device/launch.h"
#include "toolkit/args.h"

namespace tq {

template <int Rank>
struct Strided {
  void* data;
  int64_t stride[Rank];
  tk_dtype dtype;
};

template <int Rank>
Strided<Rank> strided(const toolkit::TensorView& t) {
  Strided<Rank> s{};
  s.data = t.data<void>();
  for (int i = 0; i < Rank; ++i) s.stride[i] = t.stride(i);
  s.dtype = t.dtype();
  return s;
}

// Loaded or stored at once.
struct alignas(16) Four {
  float x[4];
};

// A packed f32 tensor in a workspace.
inline Strided<3> packed_floats(float* data, int64_t size1, int64_t size2) {
  return {data, {size1 * size2, size2, 1}, TK_F32};
}

DEVICE_FUNCTION float load_float(const void* data, tk_dtype dtype, int64_t at) {
  if (dtype == TK_F16) return device::to_float(static_cast<const device::f16*>(data)[at]);
  if (dtype == TK_BF16) return device::to_float(static_cast<const device::bf16*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

DEVICE_FUNCTION void store_float(void* data, tk_dtype dtype, int64_t at, float value) {
  if (dtype == TK_F16)
    static_cast<device::f16*>(data)[at] = device::from_float<device::f16>(value);
  else if (dtype == TK_BF16)
    static_cast<device::bf16*>(data)[at] = device::from_float<device::bf16>(value);
  else
    static_cast<float*>(data)[at] = value;
}

DEVICE_FUNCTION int64_t load_index(const void* data, tk_dtype dtype, int64_t at) {
  if (dtype == TK_I64) return static_cast<const int64_t*>(data)[at];
  return static_cast<const int32_t*>(data)[at];
}

// Kernels without collectives give one thread one item: for (i = first_item(); i < items; i +=
// item_step()).
inline constexpr int kItemThreads = 128;

inline device::Grid item_grid(int64_t items) {
  const int64_t blocks = (items + kItemThreads - 1) / kItemThreads;
  constexpr int64_t kMost = 1 << 30;
  return {static_cast<int>(blocks < kMost ? blocks : kMost), 1, 1};
}

DEVICE_FUNCTION int64_t first_item() {
  return int64_t{device::block_x()} * device::threads() + device::thread();
}
DEVICE_FUNCTION int64_t item_step() { return int64_t{device::blocks_x()} * device::threads(); }

}  // namespace tq
