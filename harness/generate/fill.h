// SPDX-License-Identifier: Apache-2.0
// Filling tensors. Element `linear` (row-major in the tensor's shape) gets number `linear` of the stream, so contents do
// not depend on strides.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/generate/random.h"
#include "harness/tensors/tensor.h"

namespace harness {

// A number of a normal stream as an element: put(sum) writes normal_of(sum) * scale + mean. A sum has half a million values,
// so for many 2-byte elements their codes come from a table.
class NormalElement {
 public:
  NormalElement(tk_dtype dtype, double scale, double mean, int64_t elements);
  void put(int32_t sum, std::byte* p) const;

 private:
  tk_dtype dtype_;
  double scale_, mean_;
  std::vector<uint16_t> codes_;  // of every sum, or empty
};

void fill_normal(Tensor& t, const Random& random, double scale = 1.0, double mean = 0.0);
void fill_uniform(Tensor& t, const Random& random, double low, double high);
void fill_below(Tensor& t, const Random& random, int64_t n);  // integers of [0,n)
void fill_bytes(Tensor& t, const Random& random);             // every element any bit pattern
void fill_real(Tensor& t, double value);
void fill_integer(Tensor& t, int64_t value);
// Every element all ones: NaN in each float format but e4b15 and e4m3fnuz, -1 in integers. What no kernel may read.
void fill_poison(Tensor& t);
// The whole storage, guards and gaps between strided elements included.
void poison_storage(Tensor& t);

// A dense tensor of these integers (or reals): shape [n], or the shape given.
Tensor from_integers(tk_dtype dtype, const std::vector<int64_t>& values);
Tensor from_integers(tk_dtype dtype, const std::vector<int64_t>& values, Shape shape);
Tensor from_reals(tk_dtype dtype, const std::vector<double>& values, Shape shape);

}  // namespace harness
