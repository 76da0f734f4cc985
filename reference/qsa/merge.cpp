// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.merge.
//
// The bound: a weight 2^(lse - max) carries the rounding of the difference (2^-24 of it, times ln
// 2) and an exp2 within 2 ulp (2^-22), which moves the output by sum w eta |o_s - o| / sum w; fp32
// sums of n terms, (n + 4) 2^-24 of the sum of magnitudes; a division within 2 ulp; weights and
// products below the normal range may be flushed (2^-126); the rounding of the output and one ulp
// of it.
#include "qsa/merge.h"

#include <atomic>

#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/reader.h"

namespace reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result merge(const toolkit::Args& a) {
  const Reader partial(a.tensor("partial_output")), lse(a.tensor("partial_lse"));
  const int64_t splits = partial.size(0), rows = partial.size(1), heads = partial.size(2),
                dim = partial.size(3);
  Output out;
  out.dtype = toolkit::dtype_named(a.text("output_dtype"));
  out.shape = {rows, heads, dim};
  out.value.assign(size_t(rows * heads * dim), 0.0);
  out.bound.assign(size_t(rows * heads * dim), 0.0);
  out.judged.assign(out.value.size(), 1);
  std::vector<std::vector<std::string>> findings(static_cast<size_t>(rows));
  std::atomic<bool> all_judged = true;
  for_each_row(rows, [&](int64_t i) {
    for (int64_t h = 0; h < heads; ++h) {
      double top = -kInfinity;
      bool broken = false;  // a NaN or +inf lse
      for (int64_t s = 0; s < splits; ++s) {
        const double l = lse.real(s, i, h);
        broken |= std::isnan(l) || l == kInfinity;
        top = std::max(top, l);
      }
      const size_t at = size_t((i * heads + h) * dim);
      if (broken) {
        std::fill_n(out.value.begin() + at, dim, std::numeric_limits<double>::quiet_NaN());
        findings[size_t(i)].push_back("row " + std::to_string(i) + ", head " + std::to_string(h) +
                                      ": a partial_lse is NaN or +inf; the result has to be NaN");
        continue;
      }
      if (top == -kInfinity) continue;  // zeros
      bool overflow = false;
      for (int64_t d = 0; d < dim; ++d) {
        double weights = 0, sum = 0, magnitude = 0;
        for (int64_t s = 0; s < splits; ++s) {
          if (lse.real(s, i, h) == -kInfinity) continue;  // not read
          const double w = std::exp2(lse.real(s, i, h) - top), o = partial.real(s, i, h, d);
          weights += w;
          sum += w * o;
          magnitude += w * std::fabs(o);
        }
        const double value = sum / weights;
        double by_weight = 0, flushed = 0;
        for (int64_t s = 0; s < splits; ++s) {
          const double l = lse.real(s, i, h);
          if (l == -kInfinity) continue;
          const double o = partial.real(s, i, h, d);
          const double eta = (top - l) * 0x1p-24 + 0x1p-22;
          by_weight += std::exp2(l - top) * eta * std::fabs(o - value);
          flushed += 0x1p-126 * (1 + std::fabs(o - value));
        }
        double bound = (by_weight + flushed +
                        double(splits + 4) * 0x1p-24 * (magnitude + weights * std::fabs(value))) /
                           weights +
                       0x1p-22 * std::fabs(value);
        bound = rounded_bound(out.dtype, value, bound);
        overflow |= !(magnitude <= 0x1.fffffep127) ||
                    std::fabs(value) + bound > format_of(out.dtype).largest;
        out.value[at + size_t(d)] = value;
        out.bound[at + size_t(d)] = bound;
      }
      if (!overflow) continue;
      findings[size_t(i)].push_back(
          "row " + std::to_string(i) + ", head " + std::to_string(h) +
          ": a live partial output is not finite, or the sum is beyond the output's range; not "
          "judged");
      std::fill_n(out.judged.begin() + int64_t(at), dim, uint8_t{0});
      all_judged = false;
    }
  });
  Result result;
  for (auto& of_row : findings)
    result.findings.insert(result.findings.end(), of_row.begin(), of_row.end());
  if (all_judged) out.judged.clear();
  result.outputs.emplace("output", std::move(out));
  return result;
}

const Registration registered("qsa.merge", merge);

}  // namespace
}  // namespace reference
