// SPDX-License-Identifier: Apache-2.0
// Measures the roofs of the devices of a run (`roofs`, or `run --roofs`): one row a roof.
#pragma once

#include <string>

#include "cli/session.h"
#include "cli/target.h"

namespace cli {

// Writes the rows, and keeps those of each device in the target for the rows that follow. What has
// a row already (--resume) is not measured again.
void measure_roofs(Session& session, Target& target);

// From a parent to the child of an isolated case, which measures none itself: lines of
// harness::run_child's input, and what the child's session got of them.
std::string lines_of_roofs(const Target& target);
void take_roofs(const Session& session, Target& target);

}  // namespace cli
