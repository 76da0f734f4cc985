// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/sampling.h"

#include <algorithm>
#include <chrono>

namespace harness {

std::vector<Summary> take_samples(const std::vector<Sampler>& subjects,
                                  const SamplingRules& rules) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> samples(subjects.size());
  std::vector<double> spent_s(subjects.size(), 0);
  const auto done = [&](size_t i) {
    if (samples[i].size() < 3) return false;
    if (spent_s[i] >= rules.max_time_s) return true;
    if (spent_s[i] < rules.min_time_s || static_cast<int>(samples[i].size()) < rules.min_samples)
      return false;
    // The summary sorts: ask it rarely once there are many samples.
    if (samples[i].size() > 100 && samples[i].size() % 100) return false;
    return summarize(samples[i]).noise_pct <= rules.max_noise_pct;
  };
  bool open = !subjects.empty();
  while (open) {
    open = false;
    for (size_t i = 0; i < subjects.size(); ++i) {
      if (done(i)) continue;
      const auto begin = Clock::now();
      samples[i].push_back(subjects[i]());
      spent_s[i] += std::chrono::duration<double>(Clock::now() - begin).count();
      open = true;
    }
  }
  std::vector<Summary> summaries;
  for (auto& s : samples) summaries.push_back(summarize(std::move(s)));
  return summaries;
}

}  // namespace harness
