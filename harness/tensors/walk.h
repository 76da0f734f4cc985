// SPDX-License-Identifier: Apache-2.0
// Visiting all elements of a strided tensor in row-major order, without a division per element.
#pragma once

#include "harness/tensors/tensor.h"
#include "toolkit/dtype.h"

namespace harness {

// visit(linear, address) for every element; stops early where visit returns a bool and that is false.
template <class Visit>
void walk(const Tensor& t, Visit&& visit) {
  const int64_t n = t.count();
  if (n == 0) return;
  const int bytes = toolkit::bytes_of(t.dtype);
  const int rank = int(t.shape.size());
  std::vector<int64_t> index(t.shape.size(), 0);
  std::byte* p = t.data();
  for (int64_t linear = 0; linear < n; ++linear) {
    if constexpr (std::is_same_v<decltype(visit(linear, p)), bool>) {
      if (!visit(linear, p)) return;
    } else {
      visit(linear, p);
    }
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t step = t.strides[size_t(d)] * bytes;
      if (++index[size_t(d)] < t.shape[size_t(d)]) {
        p += step;
        break;
      }
      p -= step * (t.shape[size_t(d)] - 1);
      index[size_t(d)] = 0;
    }
  }
}

}  // namespace harness
