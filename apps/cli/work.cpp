// SPDX-License-Identifier: Apache-2.0
#include "cli/work.h"

#include <fmt/format.h>

#include <set>

#include "harness/generate/sizes_only.h"
#include "harness/plugins/errors.h"
#include "harness/run/execute.h"
#include "harness/run/fit.h"
#include "harness/tensors/host_memory.h"

namespace cli {

using harness::Status;
using harness::Verdict;

namespace {

Verdict without_judging(Status status, std::string reason) {
  Verdict v;
  v.status = status;
  v.reason = std::move(reason);
  return v;
}

}  // namespace

harness::Case make_case(const Planned& planned, const Options& options) {
  try {
    harness::Case made = planned.card->generate(planned.at, options.seed);
    made.op = planned.card->op();
    made.id = planned.id;
    made.preset = planned.preset;
    made.seed = options.seed;
    return made;
  } catch (const std::invalid_argument& e) {
    throw harness::BadRequest(fmt::format("{}: {}", planned.id, e.what()));
  }
}

harness::Row planned_row(const Session& session, const Target& target, const Planned& planned) {
  harness::Case none;
  none.op = planned.card->op();
  none.id = planned.id;
  none.preset = planned.preset;
  none.seed = session.options().seed;
  return session.row_of(none, &target.devices().front(), "", planned.selection);
}

void with_case(Session& session, const Target& target, const Planned& planned,
               const std::function<void(const harness::Case&)>& work) {
  const harness::Row row = planned_row(session, target, planned);
  if (session.lost_before(row)) return;
  std::optional<harness::Case> made;
  try {
    made = session.watched(row, [&] { return make_case(planned, session.options()); });
  } catch (const harness::BadRequest& e) {  // coordinates that make no case
    session.bad_input(row, e.what());
  } catch (const std::bad_alloc& e) {
    session.finish_row(row, too_big_for_host(e));
  }
  if (made) work(*made);
}

harness::Verdict too_big_for_host(const std::bad_alloc& e) {
  const auto* known = dynamic_cast<const harness::HostMemory*>(&e);
  return without_judging(Status::skip,
                         known ? known->what() : "needs more memory than this host has left");
}

int dry_run(const Plan& plan, const Options& options) {
  for (const auto& line : plan.left_out) fmt::print("left out: {}\n", line);
  for (const auto& planned : plan.cases) try {
      // What a step moves is known by running its stages, on numbers.
      harness::make_sizes_only(planned.card->wants_oracle());
      const harness::Case made = make_case(planned, options);
      const harness::Cost cost = planned.card->cost(made);
      fmt::print("{}  bytes={:.0f} flops={:.0f} memory_bytes={}  {}\n", planned.id, cost.bytes,
                 cost.flops, harness::placed_bytes(*planned.card, made), made.shape);
    } catch (const std::bad_alloc& e) {
      fmt::print("{}  skip: {}\n", planned.id, too_big_for_host(e).reason);
    }
  fmt::print("{} cases, none was run (--dry-run)\n", plan.cases.size());
  return plan.cases.empty() ? kNothingJudged : kPass;
}

void announce(Session& session, const Plan& plan, const Target& target) {
  std::set<std::string_view> ops;
  for (const auto& planned : plan.cases) ops.insert(planned.card->op());
  std::string devices;
  for (const auto& device : target.devices())
    devices += (devices.empty() ? "" : ", ") + describe(device);
  session.say(fmt::format("seed {}: {} case{} of {} op{} on {}", session.options().seed,
                          plan.cases.size(), plan.cases.size() == 1 ? "" : "s", ops.size(),
                          ops.size() == 1 ? "" : "s", devices));
  for (const auto& line : target.absent()) session.say(line);
  for (const auto& line : plan.left_out) session.say("left out: " + line);
}

void judge_on_devices(Session& session, Target& target, const harness::Card& card,
                      const harness::Case& made, const std::string& selection) {
  const auto plant =
      session.options().plant.empty() ? std::nullopt : find_fault(card, session.options().plant);
  std::optional<harness::Truth> truth;
  for (const auto& device : target.devices()) {
    const auto implementations = target.implementations(device, card.op());
    if (implementations.empty()) {
      harness::Row row = session.row_of(made, &device, "", selection);
      if (!session.there(row))
        session.finish_row(
            std::move(row),
            without_judging(Status::unsupported, fmt::format("no implementation of {} on {}",
                                                             card.op(), device.name())));
    }
    for (const auto& implementation : implementations) {
      if (session.should_stop()) return;
      harness::Row row = session.row_of(made, &device, implementation.label, selection);
      if (session.there(row)) {
        if (target.only_best()) break;
        continue;
      }
      if (!harness::has_rows(card, made)) {
        session.finish_row(std::move(row), without_judging(Status::skip, "0 rows"));
        if (target.only_best()) break;
        continue;
      }
      try {
        if (auto why = harness::why_too_big(device, implementation, card, made,
                                            session.options().mem_fraction);
            !why.empty()) {
          session.finish_row(std::move(row), without_judging(Status::skip, std::move(why)));
          continue;
        }
        if (!truth)
          session.watched(row, [&] { truth.emplace(card, made, session.options().judge_rows); });
        const harness::Cost cost = card.cost(made);
        row.set("bytes", cost.bytes);
        row.set("flops", cost.flops);
        const auto outcome =
            session.watched(row, [&] { return run_case(device, implementation, *truth, plant); });
        const bool serves = outcome.verdict.status != Status::unsupported;
        if (target.only_best() && !serves && &implementation != &implementations.back()) continue;
        row.set("digest", outcome.digest);
        session.finish_row(std::move(row), outcome.verdict, outcome.survived);
        if (target.only_best()) break;
      } catch (const toolkit::Violation&) {
        throw;  // the case itself is at fault
      } catch (const std::bad_alloc& e) {
        session.finish_row(std::move(row), too_big_for_host(e));
      } catch (const std::exception& e) {  // the other cases go on
        session.finish_row(std::move(row), without_judging(Status::error, e.what()));
      }
    }
  }
}

}  // namespace cli
