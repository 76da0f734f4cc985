// SPDX-License-Identifier: Apache-2.0
// `run` of the benches. Google Benchmark holds the list of cases and calls them; sampling and rows
// are ours.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cli/dump_flags.h"
#include "cli/isolate.h"
#include "cli/roofs.h"
#include "cli/session.h"
#include "cli/target.h"
#include "cli/timing.h"
#include "cli/verbs.h"
#include "cli/work.h"
#include "harness/dumps/bad_file.h"
#include "harness/plugins/errors.h"

namespace cli {

namespace {

// Our own lines are printed as rows are finished; the library's table is not.
class Silent : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

// Registers `work` under the case's id and runs it once, with the time that it returns
// (microseconds).
void enlist(const std::string& id, std::function<double()> work, std::exception_ptr& thrown) {
  benchmark::RegisterBenchmark(id.c_str(),
                               [work, &thrown](benchmark::State& state) {
                                 for (auto _ : state) {
                                   if (thrown) continue;
                                   try {
                                     state.SetIterationTime(work() * 1e-6);
                                   } catch (...) {  // the library is not made for exceptions
                                     thrown = std::current_exception();
                                   }
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1);
}

struct Loaded {
  harness::Case made;
  std::string selection;
  size_t file;  // of --load
};

std::vector<Loaded> load_all(const Tool& tool, const Options& options, Session& session) {
  std::vector<Loaded> cases;
  const auto asked = resolve_ops(tool, options.ops);
  for (size_t i = 0; i < options.load.size(); ++i) {
    if (session.is_child() && i != static_cast<size_t>(options.isolated_case)) continue;
    const std::string& file = options.load[i];
    const std::string flags =
        fmt::format("--load {}{}{}", shell_word(file), dump_flags(options), measuring_flags(options));
    const auto bad = [&](const std::string& what) {
      harness::Case none;
      none.id = file;
      std::string words;
      if (asked.size() == 1) none.op = asked.front()->op();
      for (const auto& op : options.ops) words += shell_word(op) + " ";
      session.bad_input(session.row_of(none, nullptr, "", words + flags), what);
    };
    try {
      harness::Case made = harness::load_case({file}, load_options(options));
      const auto* card = harness::find_card(made.op);
      if (std::ranges::find(asked, card) == asked.end())
        throw std::invalid_argument(
            fmt::format("a dump of {}, which is not among the ops of this run", made.op));
      for (const auto& note : made.notes) session.say("note: " + note);
      cases.push_back({std::move(made), fmt::format("{} {}", card->op(), flags), i});
    } catch (const harness::BadFile& e) {
      bad(e.what());
    } catch (const std::invalid_argument& e) {
      bad(fmt::format("{}: {}", file, e.what()));
    }
  }
  return cases;
}

double time_planned(Session& session, Target& target, const Planned& planned) {
  double median = 0;
  with_case(session, target, planned, [&](const harness::Case& made) {
    median = time_case(session, target, made, planned.selection);
  });
  return median;
}

}  // namespace

int bench(const Tool& tool, const VerbName& verb, const Options& options) {
  Plan plan = options.load.empty() ? make_plan(tool, options) : Plan{};
  for (Planned& planned : plan.cases) planned.selection += measuring_flags(options);
  if (options.dry_run && options.load.empty()) return dry_run(plan, options);
  Target target(options);
  target.check(resolve_ops(tool, options.ops));
  Session session(tool, verb, options);
  const std::vector<Loaded> loaded = load_all(tool, options, session);
  if (session.is_child()) {
    take_roofs(session, target);
    if (options.load.empty())
      time_planned(session, target, plan.cases.at(options.isolated_case));
    else if (!loaded.empty())
      time_case(session, target, loaded.front().made, loaded.front().selection);
    return session.end();
  }
  if (options.load.empty()) announce(session, plan, target);
  if (!any_timed(target))
    session.say(
        "no timed device here: kernels are verified, and only the float64 oracle is timed, on this "
        "host");
  if (options.roofs) measure_roofs(session, target);
  std::exception_ptr thrown;
  const size_t all = loaded.size() + plan.cases.size();
  size_t done = 0;
  const auto add = [&](const std::string& id, int index, auto row, auto work) {
    enlist(
        id,
        [&session, &target, &verb, &done, all, id, index, row, work]() -> double {
          if (session.should_stop()) return 0;
          session.progress(done++, all, id);
          if (!session.options().isolate) return work();
          run_isolated(session, verb, index, row(), lines_of_roofs(target));
          return 0;
        },
        thrown);
  };
  for (const auto& l : loaded)
    add(
        l.made.id, l.file,
        [&] { return session.row_of(l.made, &target.devices().front(), "", l.selection); },
        [&] { return time_case(session, target, l.made, l.selection); });
  for (size_t i = 0; i < plan.cases.size(); ++i) {
    const Planned& planned = plan.cases[i];
    add(
        planned.id, i, [&] { return planned_row(session, target, planned); },
        [&] { return time_planned(session, target, planned); });
  }
  Silent silent;
  if (all > 0) benchmark::RunSpecifiedBenchmarks(&silent, "all");
  if (thrown) std::rethrow_exception(thrown);
  return session.end();
}

}  // namespace cli
