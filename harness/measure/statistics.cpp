// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/statistics.h"

#include <algorithm>
#include <cmath>

namespace harness {

namespace {

// Linear interpolation between the neighbouring order statistics.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  std::ranges::sort(samples);
  const double n = static_cast<double>(samples.size());
  Summary s;
  s.samples = static_cast<int>(samples.size());
  s.min = samples.front();
  s.q1 = quantile(samples, 0.25);
  s.median = quantile(samples, 0.5);
  s.q3 = quantile(samples, 0.75);
  s.median_lo = samples.front();
  s.median_hi = samples.back();
  if (samples.size() >= 6) {
    const double reach = 1.959964 * std::sqrt(n) / 2;  // of a binomial(n, 1/2)
    const auto lo = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach) - 1));
    const auto hi = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + reach)));
    s.median_lo = samples[lo];
    s.median_hi = samples[hi];
  }
  const double reach = 3 * (s.q3 - s.q1);
  s.outliers = static_cast<int>(std::ranges::count_if(
      samples, [&](double t) { return t < s.q1 - reach || t > s.q3 + reach; }));
  s.noise_pct = s.median > 0 ? 100 * (s.median_hi - s.median_lo) / 2 / s.median : 0;
  return s;
}

}  // namespace harness
