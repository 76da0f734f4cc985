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

inline void require_same_dtype(const Args& a, std::string_view name, std::string_view other) {
  require(a.tensor(name).dtype() == a.tensor(other).dtype(), a, name,
          "dtype " + std::string(name_of(a.tensor(other).dtype())) + " as " + std::string(other),
          std::string(name_of(a.tensor(name).dtype())));
}

}  // namespace toolkit
