// SPDX-License-Identifier: Apache-2.0
// What a set of time samples says: quartiles, and how sure the median is.
#pragma once

#include <vector>

namespace harness {

struct Summary {
  int samples = 0;
  double min = 0, q1 = 0, median = 0, q3 = 0;  // microseconds
  // 95 % confidence interval of the median from order statistics (no assumption about the
  // distribution); the whole range below 6 samples, where there is no such interval.
  double median_lo = 0, median_hi = 0;
  double noise_pct = 0;        // half of that interval in percent of the median
  int outliers = 0;            // beyond the quartiles by more than three times their distance
  int discarded = 0;           // samples that were taken and do not count (throttled)
  bool all_throttled = false;  // none was left: the numbers are those of throttled samples
};

Summary summarize(std::vector<double> samples_us);  // at least one sample

}  // namespace harness
