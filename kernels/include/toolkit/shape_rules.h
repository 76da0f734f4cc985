// SPDX-License-Identifier: Apache-2.0
// Small helpers for Contract::check: each throws a Violation that names the tensor, what was expected, what came.
#pragma once

#include <string>

#include "toolkit/args.h"

namespace toolkit {

inline std::string got_shape(const TensorView& t) { return "shape " + to_text(t.shape()); }

inline void require(bool ok, const Args& a, std::string_view name, std::string expected, std::string got) {
  if (!ok) throw Violation(a.contract().op, name, std::move(expected), std::move(got));
}

// Every listed dimension of the tensor is at least 1.
template <class... Dim>
void require_positive(const Args& a, std::string_view name, Dim... dims) {
  const TensorView t = a.tensor(name);
  for (int d : {int(dims)...})
    require(t.size(d) > 0, a, name, "dimension " + std::to_string(d) + " > 0", got_shape(t));
}

inline int64_t require_integer(const Args& a, std::string_view name, int64_t lowest) {
  const int64_t v = a.integer(name);
  require(v >= lowest, a, name, "an integer >= " + std::to_string(lowest), std::to_string(v));
  return v;
}

// A table of W pages of S has W*S places. Strides of 0 let a file of a few bytes say any W and S: what does not fit
// 64 bits as bytes of 8 is refused.
inline void require_countable(const Args& a, std::string_view table, std::string_view cache) {
  const int64_t pages = a.tensor(table).size(1), size = a.tensor(cache).size(1);
  int64_t bytes = 0;
  const bool wraps = __builtin_mul_overflow(pages, size, &bytes) || __builtin_mul_overflow(bytes, int64_t{8}, &bytes);
  require(!wraps, a, table, "a number of places (columns times pages of " + std::to_string(size) + ") below 2^60",
          got_shape(a.tensor(table)));
}

inline void require_same_dtype(const Args& a, std::string_view name, std::string_view other) {
  require(a.tensor(name).dtype() == a.tensor(other).dtype(), a, name,
          "dtype " + std::string(name_of(a.tensor(other).dtype())) + " as " + std::string(other),
          std::string(name_of(a.tensor(name).dtype())));
}

}  // namespace toolkit
