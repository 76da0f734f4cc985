// SPDX-License-Identifier: Apache-2.0
// Verifies and times one case on all devices.
#pragma once

#include <string>

#include "cli/session.h"
#include "cli/target.h"

namespace cli {

// Some device of the target says something about a kernel's time.
bool any_timed(Target& target);

// Writes the rows; returns the last median in microseconds (0 where nothing was timed).
double time_case(Session& session, Target& target, const harness::Case& made,
                 const std::string& selection);

// " --l2 warm --min-time 0.5": the measuring flags that differ from the defaults, for a repro line.
std::string measuring_flags(const Options& options);

}  // namespace cli
