// SPDX-License-Identifier: Apache-2.0
// The float64 oracles: what an op's outputs are, and how far a right kernel may be from that.
//
// An oracle is written from the contract alone: it shares no code with the kernels, not even number conversions.
// It is slow and obvious. One file an op, reference/qsa/expand.cpp, which registers itself:
//   namespace { const reference::Registration expand("qsa.expand", [](const toolkit::Args& a) { ... }); }
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "toolkit/args.h"

namespace reference {

// One output, dense and row-major in `shape`.
// - real outputs fill `value` (float64, unrounded) and `bound`: a right kernel's element x satisfies
//   |x - value| <= bound (0: exactly equal). value +-inf has to be met exactly. `dtype` is what the kernel writes.
// - integer outputs fill `integer`, exact.
// - byte outputs fill `bytes` (element bits, little endian, bytes_of(dtype) each), exact.
// `judged`: empty = all elements; else one byte per element, 0 = not judged (the note says why).
struct Output {
  tk_dtype dtype = 0;
  toolkit::Shape shape;
  std::vector<double> value, bound;
  std::vector<int64_t> integer;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> judged;
};

// All outputs by their contract name, plus intermediates that a judge needs (select: "scores", "score_bound").
struct Result {
  std::map<std::string, Output, std::less<>> outputs;
  // Faults of the input that the oracle noticed, one line each ("row 3: query holds a NaN; not judged").
  std::vector<std::string> findings;
};

using Oracle = Result (*)(const toolkit::Args&);

// The oracle of an op, nullptr where there is none. Input is checked (Args::check) before it is called; all tensors
// are in host memory, strided.
Oracle find(std::string_view op);

class Registration {
 public:
  Registration(std::string_view op, Oracle oracle);
};

}  // namespace reference
