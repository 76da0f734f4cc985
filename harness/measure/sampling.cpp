// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/sampling.h"

#include <algorithm>
#include <chrono>

namespace harness {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Series {
  std::vector<double> samples, dropped;  // dropped: those of the last throttled interval
  size_t kept = 0;                       // samples before the running interval
  int discarded = 0;
  double spent_s = 0;

  bool done(const SamplingRules& rules) const {
    const bool late = spent_s >= rules.max_time_s;
    if (late && discarded) return true;  // a card that stays throttled gives no samples at all
    if (samples.size() < 3) return false;
    if (late) return true;
    if (spent_s < rules.min_time_s || static_cast<int>(samples.size()) < rules.min_samples)
      return false;
    // The summary sorts: ask it rarely once there are many samples.
    if (samples.size() > 100 && samples.size() % 100) return false;
    return summarize(samples).noise_pct <= rules.max_noise_pct;
  }
  void end_interval(bool throttled) {
    if (throttled && samples.size() > kept) {
      dropped.assign(samples.begin() + static_cast<std::ptrdiff_t>(kept), samples.end());
      discarded += static_cast<int>(dropped.size());
      samples.resize(kept);
    }
    kept = samples.size();
  }
};

}  // namespace

std::vector<Summary> take_samples(const std::vector<Sampler>& subjects,
                                  const SamplingRules& rules) {
  std::vector<Series> all(subjects.size());
  auto asked = Clock::now();
  for (bool open = !subjects.empty(); open;) {
    open = false;
    for (size_t i = 0; i < subjects.size(); ++i) {
      if (all[i].done(rules)) continue;
      const auto begin = Clock::now();
      all[i].samples.push_back(subjects[i]());
      all[i].spent_s += seconds_since(begin);
      open = true;
    }
    if (!rules.throttled || (open && seconds_since(asked) < rules.poll_s)) continue;
    const bool throttled = rules.throttled();
    for (auto& series : all) {
      series.end_interval(throttled);
      open = open || !series.done(rules);
    }
    asked = Clock::now();
  }
  std::vector<Summary> summaries;
  for (auto& series : all) {
    const bool all_throttled = series.samples.empty();
    summaries.push_back(summarize(std::move(all_throttled ? series.dropped : series.samples)));
    summaries.back().discarded = series.discarded;
    summaries.back().all_throttled = all_throttled;
  }
  return summaries;
}

}  // namespace harness
