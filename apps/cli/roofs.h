// SPDX-License-Identifier: Apache-2.0
// Measures the roofs of the devices of a run (`roofs`, or `run --roofs`): one row a roof.
#pragma once

#include "cli/session.h"
#include "cli/target.h"

namespace cli {

// Writes the rows, and keeps the ceilings of each device in the target for the rows that follow.
void measure_roofs(Session& session, Target& target);

}  // namespace cli
