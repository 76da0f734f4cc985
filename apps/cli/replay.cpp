// SPDX-License-Identifier: Apache-2.0
// `replay`: per file, judge the results that it brings, or run a kernel on its inputs and judge
// that; where it brings the truth too, compare the oracle with it.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cli/dump_flags.h"
#include "cli/isolate.h"
#include "cli/session.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "cli/work.h"
#include "harness/dumps/bad_file.h"
#include "harness/judge/stages.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"
#include "harness/run/execute.h"

namespace cli {

using harness::Status;
using harness::Verdict;

namespace {

void check_fault(const std::string& fault) {
  std::vector<std::string> names;
  for (const auto* card : harness::cards())
    for (const auto& f : card->faults()) names.emplace_back(f.name);
  if (!fault.empty() && std::ranges::find(names, fault) == names.end())
    throw harness::BadRequest(
        fmt::format("unknown fault '{}'{}; `list OP` shows the faults of an op", fault,
                    harness::nearest_hint(fault, names)));
}

class Replay {
 public:
  Replay(const Tool& tool, const VerbName& verb, const Options& options)
      : verb_(verb),
        options_(options),
        load_(load_options(options)),
        session_(tool, verb, options) {
    check_fault(options.plant);
    try {
      target_.emplace(options);
      target_->check(harness::cards());
    } catch (const harness::Absent& e) {
      absent_ = e.what();  // files that bring results are judged all the same
    }
  }

  int run() {
    for (size_t i = 0; i < options_.files.size() && !session_.should_stop(); ++i) {
      const std::string& file = options_.files[i];
      if (session_.is_child() && i != static_cast<size_t>(options_.isolated_case)) continue;
      try {
        if (options_.isolate && !session_.is_child())
          run_isolated(session_, verb_, static_cast<int>(i), row_of_file(file));
        else
          replay(file);
      } catch (const std::invalid_argument& e) {  // a Violation, or a flag that fits no file
        session_.bad_input(row_of_file(file), fmt::format("{}: {}", file, e.what()));
      } catch (const harness::BadFile& e) {
        session_.bad_input(row_of_file(file), e.what());
      } catch (const std::bad_alloc&) {
        failed(file, "out of memory");
      } catch (const std::exception& e) {  // the other files go on
        failed(file, e.what());
      }
    }
    return session_.end();
  }

 private:
  harness::Row row_of_file(const std::string& file) const {
    harness::Case none;
    none.id = file;
    return session_.row_of(none, nullptr, "", shell_word(file));
  }
  void failed(const std::string& file, const std::string& reason) {
    Verdict v;
    v.status = Status::error;
    v.reason = reason;
    session_.finish_row(row_of_file(file), v);
  }

  void replay(const std::string& file) {
    const harness::Case made = harness::load_case({file}, load_);
    for (const auto& note : made.notes) session_.say("note: " + note);
    const harness::Card& card = *harness::find_card(made.op);
    const std::string selection = shell_word(file) + dump_flags(options_);
    if (harness::has_stages(made)) {
      judge_step(made, selection);
    } else if (!made.actual.empty()) {
      judge_actual(card, made, selection);
    } else if (target_) {
      judge_on_devices(session_, *target_, card, made, selection);
    } else {
      Verdict v;
      v.status = Status::skip;
      v.reason = absent_;
      session_.finish_row(session_.row_of(made, nullptr, "", selection), v);
    }
  }

  // Nobody knows which machine wrote the results.
  harness::Row row_of_actual(const harness::Case& made, const std::string& selection) const {
    harness::Row row = session_.row_of(made, nullptr, "actual (dump)", selection);
    for (const auto column : {"backend", "device", "arch", "toolkit"}) row.set(column, {});
    return row;
  }

  // A step's stages are judged one by one on the inputs that each really had.
  void judge_step(const harness::Case& made, const std::string& selection) {
    harness::Row row = row_of_actual(made, selection);
    const Verdict v =
        session_.watched(row, [&] { return harness::judge_stages(made, made.actual); });
    row.set("digest", harness::digest_of(made.actual));
    session_.finish_row(std::move(row), v);
  }

  void judge_actual(const harness::Card& card, const harness::Case& made,
                    const std::string& selection) {
    harness::Row row = row_of_actual(made, selection);
    if (!harness::has_rows(card, made)) {
      Verdict v;
      v.status = Status::skip;
      v.reason = "0 rows";
      session_.finish_row(std::move(row), v);
      return;
    }
    const auto plant = options_.plant.empty() ? std::nullopt : find_fault(card, options_.plant);
    const auto outcome = session_.watched(row, [&] {
      const harness::Truth truth(card, made);
      auto judged = judge_results(truth, made.actual, plant);
      truth.compare_expected(judged.verdict);
      return judged;
    });
    row.set("digest", outcome.digest);
    session_.finish_row(std::move(row), outcome.verdict, outcome.survived);
  }

  const VerbName& verb_;
  const Options& options_;
  const harness::LoadOptions load_;
  Session session_;
  std::optional<Target> target_;
  std::string absent_;
};

}  // namespace

int replay(const Tool& tool, const VerbName& verb, const Options& options) {
  try {
    return Replay(tool, verb, options).run();
  } catch (const std::invalid_argument& e) {  // --set without '='
    throw harness::BadRequest(e.what());
  }
}

}  // namespace cli
