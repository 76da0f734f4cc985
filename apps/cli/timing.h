// SPDX-License-Identifier: Apache-2.0
// Verifies and times one case on all devices.
#pragma once

#include <string>

#include "cli/session.h"
#include "cli/target.h"
#include "harness/measure/gpu_monitor.h"
#include "harness/measure/sampling.h"

namespace cli {

// Some device of the target says something about a kernel's time.
bool any_timed(Target& target);

// Writes the rows; returns the last median in microseconds (0 where nothing was timed).
double time_case(Session& session, Target& target, const harness::Case& made,
                 const std::string& selection);

// When the sampling of a row ends, by the measuring flags.
harness::SamplingRules rules_of(const Options& options);
// The columns of time and of the model; of the card's state; and what they make of a verdict: a
// noisy or throttled row is inconclusive, outliers are told.
void set_times(harness::Row& row, const harness::Summary& summary, const harness::Cost& cost);
void set_readings(harness::Row& row, const harness::GpuMonitor& monitor,
                  const harness::Summary& summary);
// The card's reasons for a lowered clock (GpuReadings::reasons) are told too.
void hold_to_noise(harness::Verdict& verdict, const harness::Summary& summary, double most_pct,
                   uint64_t throttle_reasons = 0);

// " --l2 warm --min-time 0.5": the measuring flags that differ from the defaults, for a repro line;
// and those of a roof, which has a cache state of its own.
std::string measuring_flags(const Options& options);
std::string sampling_flags(const Options& options);

}  // namespace cli
