// SPDX-License-Identifier: Apache-2.0
// What the verbs do with one case.
#pragma once

#include <string>

#include "cli/plan.h"
#include "cli/session.h"
#include "cli/target.h"
#include "harness/tensors/case.h"

namespace cli {

// Generates the case of a plan. Throws BadRequest where its coordinates make no case.
harness::Case make_case(const Planned& planned, const Options& options);

// The row of a planned case that was not made (its child died first), on the first device.
harness::Row planned_row(const Session& session, const Target& target, const Planned& planned);

// Prints ids, bytes and flops; runs nothing.
int dry_run(const Plan& plan, const Options& options);

// The first lines of a run: seed, cases, devices, what was left out and why.
void announce(Session& session, const Plan& plan, const Target& target);

// Runs every chosen implementation on every device and writes their rows. The case keeps its
// contract.
void judge_on_devices(Session& session, Target& target, const harness::Card& card,
                      const harness::Case& made, const std::string& selection);

}  // namespace cli
