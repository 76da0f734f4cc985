// SPDX-License-Identifier: Apache-2.0
// `run` of the verifier: generate, run, judge, a row for every case, implementation and device.
#include <fmt/format.h>

#include "cli/isolate.h"
#include "cli/plan.h"
#include "cli/session.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "cli/work.h"

namespace cli {

namespace {

void judge(Session& session, Target& target, const Planned& planned) {
  try {
    with_case(session, target, planned, [&](const harness::Case& made) {
      judge_on_devices(session, target, *planned.card, made, planned.selection);
    });
  } catch (const toolkit::Violation& e) {
    session.bad_input(planned_row(session, target, planned),
                      fmt::format("{}: {}", planned.id, e.what()));
  }
}

}  // namespace

int verify(const Tool& tool, const VerbName& verb, const Options& options) {
  const Plan plan = make_plan(tool, options);
  if (options.dry_run) return dry_run(plan, options);
  Target target(options);
  target.check(resolve_ops(tool, options.ops));
  Session session(tool, verb, options);
  if (session.is_child()) {
    judge(session, target, plan.cases.at(options.isolated_case));
    return session.end();
  }
  announce(session, plan, target);
  for (size_t i = 0; i < plan.cases.size() && !session.should_stop(); ++i) {
    const Planned& planned = plan.cases[i];
    session.progress(i, plan.cases.size(), planned.id);
    if (options.isolate)
      run_isolated(session, verb, i, planned_row(session, target, planned));
    else
      judge(session, target, planned);
    const bool last_of_op = i + 1 == plan.cases.size() || plan.cases[i + 1].card != planned.card;
    if (last_of_op || session.should_stop()) session.summarize_op(planned.card->op());
  }
  return session.end();
}

}  // namespace cli
