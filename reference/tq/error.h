// SPDX-License-Identifier: Apache-2.0
// How far a right fp32 kernel may be from float64: the few quantities that the bounds of the TurboQuant oracles are
// made of. Notation as in Higham, "Accuracy and Stability of Numerical Algorithms": u is the unit roundoff.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/numbers.h"
#include "reference/oracle.h"

namespace reference::tq {

inline constexpr double kUnit = 0x1p-24;       // fp32, round to nearest
inline constexpr double kApproximate = 4;      // u of a fast exp, log, divide or square root: 2 ulp
inline constexpr double kFp32Largest = 3.4028234663852886e38;

// Relative error (of the sum of magnitudes) that n fp32 additions in any order may have: n u in the worst case, and
// lambda sqrt(n) u where roundings are independent (Higham and Mary, "A new approach to probabilistic rounding error
// analysis", 2019), with lambda such that one of `results` sums is beyond it once in 10^9 cases.
inline double accumulation(int64_t n, int64_t results) {
  const double terms = double(std::max<int64_t>(n, 1));
  const double lambda = std::sqrt(2 * std::log(2e9 * terms * double(std::max<int64_t>(results, 1))));
  return kUnit * std::min(terms, lambda * std::sqrt(terms));
}

// The same of n additions one after the other on tensor cores, as in the oracles of qsa.score and qsa.attend: they cut each
// addend of a step instead of rounding it, by at most 2^-23 of the largest magnitude, and always towards zero, so that
// the errors add up.
inline double on_tensor_cores(int64_t n) { return double(n + 16) * 0x1p-23; }

// What tensor cores cut of a code that stands in the low bits of an f16, 2^-24 times the code: a denormal counts there as
// 2^-14, whatever it is, and what is added in a step is cut below 2^-23 of the largest, 2^-37, in each token's name (an
// H200: below 2^-25 of it, measured 2026-12-01 as 1 - 1 + 2^-25 and 1 * 2^-24 + c). It is the cheapest way to make codes
// factors. Beside a value of 3.5 steps (3-bit codes) or 7.5 (4-bit) it is an eighth or a sixteenth of half an f16 unit;
// next to zero it is what counts. Outputs in f32 shall not lose it.
inline constexpr double kDenormalCode = 0x1p-13;

// Longest strictly increasing subsequence: no order of tiles and splits rescales a running softmax more often.
inline int64_t rescales(const std::vector<double>& scores) {
  std::vector<double> tails;
  for (double s : scores) {
    const auto at = std::lower_bound(tails.begin(), tails.end(), s);
    if (at == tails.end()) tails.push_back(s);
    else *at = s;
  }
  return int64_t(tails.size());
}

// Fills element i with a value that a kernel computes up to `error` and then rounds to the output's dtype; a result one
// unit in the last place beside the rounded one is right too (two roundings, a merge of partial results).
inline void place(Output& out, int64_t i, double value, double error) {
  const double most = std::fabs(value) + error;
  const double largest = format_of(out.dtype).largest;
  const double overflows = largest + ulp(out.dtype, largest) / 2;
  out.value[i] = value;
  if (std::fabs(value) - error >= overflows) {  // rounds to infinity whatever the kernel does
    out.value[i] = std::copysign(std::numeric_limits<double>::infinity(), value);
    out.bound[i] = 0;
  } else if (!(most + ulp(out.dtype, largest) < overflows)) {  // may round to infinity
    out.bound[i] = std::numeric_limits<double>::infinity();
  } else {
    out.bound[i] = rounded_bound(out.dtype, value, error);
  }
}

inline Output real_output(tk_dtype dtype, toolkit::Shape shape) {
  Output o;
  o.dtype = dtype;
  o.shape = std::move(shape);
  int64_t count = 1;
  for (int64_t n : o.shape) count *= n;
  o.value.assign(size_t(count), 0.0);
  o.bound.assign(size_t(count), 0.0);
  o.judged.assign(size_t(count), 1);
  return o;
}

// Findings, the first few by name and the rest as a count.
class Findings {
 public:
  static constexpr int64_t kNamed = 4;
  explicit Findings(std::vector<std::string>& lines, int64_t named = kNamed) : lines_(lines), named_(named) {}
  ~Findings() {
    if (count_ > named_) lines_.push_back("... and " + std::to_string(count_ - named_) + " more of this kind");
  }
  Findings(const Findings&) = delete;  // the destructor writes the last line
  Findings& operator=(const Findings&) = delete;
  void add(std::string line) {
    if (++count_ <= named_) lines_.push_back(std::move(line));
  }

 private:
  std::vector<std::string>& lines_;
  int64_t named_;
  int64_t count_ = 0;
};

}  // namespace reference::tq
