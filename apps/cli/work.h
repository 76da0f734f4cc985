// SPDX-License-Identifier: Apache-2.0
// What the verbs do with one case.
#pragma once

#include <functional>
#include <new>
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

// Makes the case, under the time limit, and hands it to `work`. What cannot be made, or not on this
// host, gets its row here: a bad input, or a skip that says what it takes.
void with_case(Session& session, const Target& target, const Planned& planned,
               const std::function<void(const harness::Case&)>& work);

// Prints ids, bytes and flops; runs nothing.
int dry_run(const Plan& plan, const Options& options);

// The first lines of a run: seed, cases, devices, what was left out and why.
void announce(Session& session, const Plan& plan, const Target& target);

// Why a case that ran out of memory is a skip: "needs 37.3 GiB of 31 GiB of this host's memory".
harness::Verdict too_big_for_host(const std::bad_alloc& e);

// Runs every chosen implementation on every device and writes their rows. The case keeps its
// contract.
void judge_on_devices(Session& session, Target& target, const harness::Card& card,
                      const harness::Case& made, const std::string& selection);

}  // namespace cli
