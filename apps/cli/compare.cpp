// SPDX-License-Identifier: Apache-2.0
// `compare`: two result files, or one beside a peer's times. Its exit code gates a merge.
#include <fmt/format.h>

#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/presets.h"
#include "cli/verbs.h"
#include "harness/compare/comparison.h"
#include "harness/compare/documents.h"
#include "harness/plugins/errors.h"
#include "harness/report/output.h"
#include "harness/report/sink.h"

namespace cli {

using harness::BadRequest;
using harness::Change;
using harness::Comparison;
using harness::ComparisonRules;

namespace {

// Opened before anything is read, so that a path which cannot be written is known at once.
class Document {
 public:
  explicit Document(const std::string& path) {
    if (!path.empty()) file_.emplace(path, harness::OutputFile::Mode::replace);
  }
  void write(const std::string& text) {
    if (file_) file_->write(text);
  }

 private:
  std::optional<harness::OutputFile> file_;
};

ComparisonRules rules_of(const Options& o) {
  ComparisonRules rules;
  rules.gate_pct = o.gate_pct;
  rules.across_devices = o.across_devices;
  if (o.implementations.size() > 2)
    throw BadRequest(
        fmt::format("--impl takes one implementation, or that of A and that of B; got {}",
                    o.implementations.size()));
  if (!o.implementations.empty()) {
    rules.impl_a = o.implementations.front();
    rules.impl_b = o.implementations.back();
  }
  return rules;
}

// Machines are compared to be looked at: there a slower case is no regression, unless a gate is
// set.
bool gates(const Options& o) { return !o.across_devices || o.gate_given; }

int code_of(const Comparison& c, const Options& o) {
  if (c.regressions() && gates(o)) return kRegression;
  if (c.count(Change::unclear) || (o.require_all && c.unmatched())) return kInconclusive;
  return c.judged() ? kPass : kNothingJudged;
}

std::string verdict_of(int code, const Comparison& c, const Options& o) {
  using harness::counted;
  const std::string cases = counted(c.judged(), "case");
  const std::string lost =
      c.lost ? fmt::format(", {} not compared (failed on one side)", c.lost) : std::string();
  switch (code) {
    case kRegression:
      return fmt::format("REGRESSION: {} of {} slower{}{}", c.regressions(), cases,
                         o.gate_pct > 0 ? fmt::format(" by more than {} %", o.gate_pct) : "", lost);
    case kInconclusive:
      if (!c.count(Change::unclear))
        return fmt::format("UNCLEAR: {} without a counterpart (--require-all)",
                           counted(c.unmatched(), "case"));
      return fmt::format("UNCLEAR: {} of {}{}", c.count(Change::unclear), cases, lost);
    case kNothingJudged:
      return "NOTHING COMPARED: no case is timed in both" + lost;
    default:
      return fmt::format("PASS: {} compared{}", cases, lost);
  }
}

}  // namespace

int compare(const Tool& tool, const VerbName&, const Options& o) {
  const size_t wanted = o.peer.empty() ? 2 : 1;
  if (o.files.size() > 2 || o.files.size() < wanted)
    throw BadRequest(fmt::format("expected A.csv B.csv, or one file and --peer FILE; got {} file{}",
                                 o.files.size(), o.files.size() == 1 ? "" : "s"));
  const ComparisonRules rules = rules_of(o);
  std::vector<std::string> inputs = o.files;
  if (!o.peer.empty()) inputs.push_back(o.peer);
  check_outputs(inputs, {o.csv, o.markdown, o.junit});
  Document csv(o.csv), markdown(o.markdown), junit(o.junit);
  std::vector<std::string> heads;
  std::optional<harness::Peers> peers;
  if (!o.peer.empty()) {
    peers.emplace((datasets_folder() / "peers" / "triton.csv").string(), o.peer);
    for (const auto& shape : peers->unknown())
      fmt::print(stderr, "{}: {}: no case of ours is '{}'\n", tool.name, o.peer, shape);
  }
  Comparison comparison;
  if (o.files.size() == 2) {
    const auto a = harness::read_results(o.files[0]), b = harness::read_results(o.files[1]);
    heads = {headline("A", a), headline("B", b)};
    comparison = harness::compare(a, b, rules);
    if (peers) add_peers(comparison, *peers);
  } else {
    const auto b = harness::read_results(o.files[0]);
    heads = {fmt::format("A {}: a peer's medians, without spread", o.peer), headline("B", b)};
    comparison = compare_with_peer(*peers, b, rules.impl_b);
  }
  const int code = code_of(comparison, o);
  const std::string verdict = verdict_of(code, comparison, o);
  csv.write(comparison_csv(comparison));
  markdown.write(comparison_markdown(comparison, heads, verdict));
  junit.write(junit_document(comparison_rows(comparison)));
  // A report on standard output is alone there.
  FILE* out = o.csv == "-" || o.markdown == "-" || o.junit == "-" ? stderr : stdout;
  if (!o.quiet) {
    for (const auto& head : heads) fmt::print(out, "{}\n", head);
    fmt::print(out, "{}{}\n", comparison_lines(comparison), comparison_counts(comparison));
  }
  fmt::print(out, "{}\n", verdict);
  return code;
}

}  // namespace cli
