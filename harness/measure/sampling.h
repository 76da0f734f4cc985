// SPDX-License-Identifier: Apache-2.0
// Takes samples of several subjects in turn (interleaved, so that a drifting clock hits all alike)
// until each one's median is sure enough or the time is up.
#pragma once

#include <functional>
#include <vector>

#include "harness/measure/statistics.h"

namespace harness {

struct SamplingRules {
  double min_time_s = 0.1;  // of a subject: it is sampled at least that long
  double max_time_s = 1;  // ... and, while it is noisy, at most that long (but 3 samples at least)
  double max_noise_pct = 5;
  int min_samples = 10;
  // Was the device slowed down since the last question? Asked every poll_s and at the end; the
  // samples since then are discarded where it was.
  std::function<bool()> throttled;
  double poll_s = 0.02;
};

using Sampler = std::function<double()>;  // one sample in microseconds

// Where every sample of a subject was taken throttled, the last of them make its summary
// (Summary::all_throttled).
std::vector<Summary> take_samples(const std::vector<Sampler>& subjects, const SamplingRules& rules);

}  // namespace harness
