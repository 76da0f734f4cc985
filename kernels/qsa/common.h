// SPDX-License-Identifier: Apache-2.0
// What the QSA kernels share: strided tensors as a kernel sees them, ids of either width, masked
// pages.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "toolkit/plugin.h"

namespace qsa {

using device::bf16;
using device::f16;

// Address of element (0, ..., 0), sizes and strides in elements. Strides may be 0 or negative.
// Passed by value.
template <int kRank>
struct Tensor {
  void* data;
  int64_t size[kRank];
  int64_t stride[kRank];
  tk_dtype dtype;
};

template <int kRank, class... Index>
DEVICE_FUNCTION int64_t offset_of(const Tensor<kRank>& t, Index... index) {
  static_assert(sizeof...(Index) <= kRank);
  int64_t at = 0;
  int dim = 0;
  ((at += int64_t(index) * t.stride[dim++]), ...);
  return at;
}

template <class T, int kRank, class... Index>
DEVICE_FUNCTION T* element(const Tensor<kRank>& t, Index... index) {
  return static_cast<T*>(t.data) + offset_of(t, index...);
}

// An id, position or length: int32 or int64 as given, 64 bits from here on.
template <int kRank, class... Index>
DEVICE_FUNCTION int64_t load_index(const Tensor<kRank>& t, Index... index) {
  const int64_t at = offset_of(t, index...);
  return t.dtype == TK_I64 ? static_cast<const int64_t*>(t.data)[at]
                           : int64_t(static_cast<const int32_t*>(t.data)[at]);
}

DEVICE_FUNCTION float load_float(const void* data, tk_dtype dtype, int64_t at) {
  if (dtype == TK_F32) return static_cast<const float*>(data)[at];
  if (dtype == TK_BF16) return device::to_float(static_cast<const bf16*>(data)[at]);
  return device::to_float(static_cast<const f16*>(data)[at]);
}

DEVICE_FUNCTION void store_float(void* data, tk_dtype dtype, int64_t at, float value) {
  if (dtype == TK_F32)
    static_cast<float*>(data)[at] = value;
  else if (dtype == TK_BF16)
    static_cast<bf16*>(data)[at] = device::from_float<bf16>(value);
  else
    static_cast<f16*>(data)[at] = device::from_float<f16>(value);
}

// `bytes` that are loaded at once; the address has to be a multiple of that.
template <class T, int kBytes = 16>
struct alignas(kBytes) Pack {
  static constexpr int kSize = kBytes / int(sizeof(T));
  T x[kSize];
};

// No element of a tensor: what stands for the offset of a masked token. Real offsets may be
// negative.
inline constexpr int64_t kMasked = INT64_MIN;

// The page that holds `place` (a token or a compressed key, >= 0), or -1: beyond the table or
// outside the cache. Both ends of the id are checked: -1 pads a table, and a table may point past
// the cache.
DEVICE_FUNCTION int64_t live_page(const Tensor<2>& table, int64_t request, int64_t column,
                                  int64_t pages) {
  if (column >= table.size[1]) return -1;
  const int64_t page = load_index(table, request, column);
  return page >= 0 && page < pages ? page : -1;
}

// Complete groups of `ratio` among the first `tokens`; none where tokens <= 0.
DEVICE_FUNCTION int64_t groups_in(int64_t tokens, int64_t ratio) {
  return tokens > 0 ? tokens / ratio : 0;
}

// Tokens up to and including `position`; none where it is negative. Saturates instead of
// overflowing.
DEVICE_FUNCTION int64_t tokens_through(int64_t position) {
  if (position < 0) return 0;
  return position == INT64_MAX ? position : position + 1;
}

// Tokens of a row's request; 0 where the request is outside the table. The id as given decides,
// never a clamped one.
DEVICE_FUNCTION int64_t length_of(const Tensor<1>& lengths, int64_t request) {
  return request >= 0 && request < lengths.size[0] ? load_index(lengths, request) : 0;
}

DEVICE_FUNCTION int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
DEVICE_FUNCTION int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace qsa
