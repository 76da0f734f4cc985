// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "harness/ops/names.h"
#include "harness/plugins/errors.h"

namespace harness {

namespace {

using Runs = std::vector<const Timing*>;
using Groups = std::map<std::string, Runs>;

std::string joined(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " and "));
}

// A machine's oracle times its processor; that two files share that does not make them comparable.
std::set<std::string> measured_devices(const Results& results) {
  if (results.hosts.size() == results.devices.size()) return results.devices;
  std::set<std::string> devices;
  std::ranges::set_difference(results.devices, results.hosts,
                              std::inserter(devices, devices.end()));
  return devices;
}

void check_devices(const Results& a, const Results& b, bool across) {
  if (a.timed.empty() || b.timed.empty()) return;
  const auto of_a = measured_devices(a), of_b = measured_devices(b);
  if (!across && std::ranges::none_of(of_a, [&](const auto& d) { return of_b.contains(d); }))
    throw BadRequest(fmt::format(
        "{} was measured on {}, {} on {}: no regression can be told from that; --across-devices "
        "compares machines",
        a.file, joined(of_a), b.file, joined(of_b)));
  if (!across) return;
  for (const Results* r : {&a, &b})
    if (measured_devices(*r).size() > 1 || r->hosts.size() > 1)
      throw BadRequest(fmt::format("{}: --across-devices wants one device a file, got {}", r->file,
                                   joined(r->devices)));
}

// What makes two rows the same case. (Not the seed: it changes values, not shapes.)
std::string key_of(const Timing& t, const ComparisonRules& rules) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", t.op, t.case_id, t.shape, t.dtype,
                     t.fp8_flavour, t.l2, t.launch, rules.across_devices ? "" : t.device,
                     rules.impl_a.empty() ? t.impl : "");
}

// A row that failed has no condition, and its case is not missing on that side.
std::string short_key(const Timing& t, const ComparisonRules& rules) {
  return fmt::format("{}\n{}\n{}", t.op, t.case_id, rules.impl_a.empty() ? t.impl : "");
}

// The name in `results` that the word means: that very name, or the only one that ends in /word.
std::string impl_named(const std::string& word, const Results& results) {
  if (word.empty()) return {};
  std::set<std::string> names, meant;
  for (const auto* rows : {&results.timed, &results.failures})
    for (const Timing& t : *rows)
      if (!t.impl.empty()) names.insert(t.impl);
  if (names.contains(word) || names.empty()) return word;
  std::vector<std::string> words(names.begin(), names.end());
  for (const auto& name : names) {
    const std::string bare = name.substr(name.find('/') + 1);
    if (bare == word) meant.insert(name);
    words.push_back(bare);
  }
  if (meant.size() == 1) return *meant.begin();
  if (meant.size() > 1)
    throw BadRequest(
        fmt::format("{}: implementation '{}' is {}: write one", results.file, word, joined(meant)));
  throw BadRequest(fmt::format("{}: unknown implementation '{}'{}; it has {}", results.file, word,
                               nearest_hint(word, words), fmt::join(names, ", ")));
}

bool chosen(const Timing& t, const std::string& impl) {
  // A row without an implementation says that there was none to run, or none that could.
  return impl.empty() || t.impl == impl || t.impl.empty();
}

// A row that stands there twice (a file appended to itself) was measured once.
Groups group(const Results& results, const ComparisonRules& rules, const std::string& impl) {
  Groups groups;
  for (const Timing& t : results.timed) {
    if (!chosen(t, impl)) continue;
    Runs& runs = groups[key_of(t, rules)];
    if (std::ranges::none_of(runs, [&](const Timing* r) { return *r == t; })) runs.push_back(&t);
  }
  return groups;
}

// A file beside itself, or beside a file that it was appended to: nothing was measured twice.
bool same_runs(const Runs& a, const Runs& b) {
  return std::ranges::equal(
      a, b, [](const Timing* x, const Timing* y) { return !x->run_id.empty() && *x == *y; });
}

Compared pair_of(const Runs& runs_a, const Results& a, const Runs& runs_b, const Results& b,
                 const ComparisonRules& rules) {
  Compared c;
  c.a = *runs_a.back();
  c.b = *runs_b.back();
  c.side_a = side_of(runs_a, a.timer_step_us);
  c.side_b = side_of(runs_b, b.timer_step_us);
  c.ratio = ratio_of(c.side_a, c.side_b, rules.gate_pct > 0 ? rules.gate_pct : kSeenPct);
  if (same_runs(runs_a, runs_b)) {
    c.ratio.change = Change::same;
    c.ratio.reason = "the very same run";
  }
  if (c.b.roof()) c.ratio.change = Change::ratio;
  c.regression = c.ratio.change == Change::slower &&
                 (rules.gate_pct == 0 || beyond(100 * (c.ratio.ratio - 1), rules.gate_pct));
  return c;
}

}  // namespace

int Comparison::count(Change change) const {
  return static_cast<int>(
      std::ranges::count_if(pairs, [&](const auto& c) { return c.ratio.change == change; }));
}

int Comparison::regressions() const {
  return static_cast<int>(std::ranges::count_if(pairs, &Compared::regression));
}

int Comparison::judged() const {
  return static_cast<int>(
      std::ranges::count_if(pairs, [](const Compared& c) { return !c.b.roof(); }));
}

int Comparison::unmatched() const {
  return lost + static_cast<int>(std::ranges::count_if(
                    only, [](const Left& left) { return !left.timing.roof(); }));
}

Comparison compare(const Results& a, const Results& b, const ComparisonRules& asked) {
  check_devices(a, b, asked.across_devices);
  ComparisonRules rules = asked;
  rules.impl_a = impl_named(asked.impl_a, a);
  rules.impl_b = impl_named(asked.impl_b, b);
  Comparison comparison;
  std::map<std::string, std::set<std::string>> failed;  // side -> short keys
  for (const auto& [results, side, impl] :
       {std::tuple(&a, "A", &rules.impl_a), std::tuple(&b, "B", &rules.impl_b)})
    for (const Timing& t : results->failures)
      if (chosen(t, *impl)) {
        comparison.failures.push_back({t, side});
        failed[side].insert(short_key(t, rules));
      }
  const Groups in_a = group(a, rules, rules.impl_a), in_b = group(b, rules, rules.impl_b);
  const auto left_over = [&](const Runs& runs, const char* side, const char* other) {
    const Timing& t = *runs.back();
    if (!failed[other].contains(short_key(t, rules)))
      comparison.only.push_back({t, side});
    else if (!t.roof())
      ++comparison.lost;
  };
  for (const auto& [key, runs] : in_a) {
    if (const auto it = in_b.find(key); it != in_b.end())
      comparison.pairs.push_back(pair_of(runs, a, it->second, b, rules));
    else
      left_over(runs, "A", "B");
  }
  for (const auto& [key, runs] : in_b)
    if (!in_a.contains(key)) left_over(runs, "B", "A");
  // The worst first; within a verdict the largest change.
  std::ranges::stable_sort(comparison.pairs, [](const Compared& x, const Compared& y) {
    if (x.ratio.change != y.ratio.change) return x.ratio.change < y.ratio.change;
    if (x.ratio.change == Change::faster) return x.ratio.ratio < y.ratio.ratio;
    return x.ratio.ratio > y.ratio.ratio;
  });
  return comparison;
}

void add_peers(Comparison& comparison, const Peers& peers) {
  for (Compared& c : comparison.pairs) c.peer = peers.find(c.b);
}

Comparison compare_with_peer(const Peers& peers, const Results& b, const std::string& word) {
  const std::string impl = impl_named(word, b);
  Comparison comparison;
  ComparisonRules rules;
  for (const auto& [key, runs] : group(b, rules, impl)) {
    Compared c;
    c.b = *runs.back();
    c.peer = peers.find(c.b);
    if (c.b.roof()) continue;  // no peer has any
    if (!c.peer) {
      comparison.only.push_back({c.b, "B"});
      continue;
    }
    c.a = c.b;
    c.a.impl = c.peer->op;
    c.a.roof_pct.reset();
    c.side_a.median_us = c.peer->us;
    c.side_b = side_of(runs, b.timer_step_us);
    c.ratio.change = Change::ratio;
    c.ratio.ratio = c.side_b.median_us / c.side_a.median_us;
    comparison.pairs.push_back(std::move(c));
  }
  for (const Timing& t : b.failures)
    if (chosen(t, impl)) comparison.failures.push_back({t, "B"});
  return comparison;
}

}  // namespace harness
