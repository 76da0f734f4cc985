// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

using Runs = std::vector<const Timing*>;
using Groups = std::map<std::string, Runs>;

std::string joined(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " and "));
}

void check_devices(const Results& a, const Results& b, bool across) {
  if (a.timed.empty() || b.timed.empty()) return;
  if (!across && a.devices != b.devices)
    throw BadRequest(fmt::format(
        "{} was measured on {}, {} on {}: no regression can be told from that; --across-devices "
        "compares machines",
        a.file, joined(a.devices), b.file, joined(b.devices)));
  if (!across) return;
  for (const Results* r : {&a, &b})
    if (r->devices.size() > 1)
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

bool chosen(const Timing& t, const std::string& impl) {
  // A row without an implementation says that there was none to run, or none that could.
  return impl.empty() || t.impl == impl || t.impl.empty();
}

Groups group(const Results& results, const ComparisonRules& rules, const std::string& impl) {
  Groups groups;
  for (const Timing& t : results.timed)
    if (chosen(t, impl)) groups[key_of(t, rules)].push_back(&t);
  return groups;
}

// A file beside itself, or beside a file that it was appended to: nothing was measured twice.
bool same_runs(const Runs& a, const Runs& b) {
  return std::ranges::equal(a, b, [](const Timing* x, const Timing* y) {
    return !x->run_id.empty() && x->run_id == y->run_id && x->impl == y->impl &&
           x->median == y->median && x->samples == y->samples;
  });
}

Compared pair_of(const Runs& runs_a, const Results& a, const Runs& runs_b, const Results& b,
                 const ComparisonRules& rules) {
  Compared c;
  c.a = *runs_a.back();
  c.b = *runs_b.back();
  c.side_a = side_of(runs_a, a.timer_step_us);
  c.side_b = side_of(runs_b, b.timer_step_us);
  c.ratio = ratio_of(c.side_a, c.side_b, rules.gate_pct > 0 ? rules.gate_pct : kSeenPct);
  if (c.ratio.lo > 0 && same_runs(runs_a, runs_b)) {
    c.ratio.change = Change::same;
    c.ratio.reason = "the very same run";
  }
  c.regression = c.ratio.change == Change::slower && 100 * (c.ratio.ratio - 1) > rules.gate_pct;
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

Comparison compare(const Results& a, const Results& b, const ComparisonRules& rules) {
  check_devices(a, b, rules.across_devices);
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
  for (const auto& [key, runs] : in_a) {
    if (const auto it = in_b.find(key); it != in_b.end())
      comparison.pairs.push_back(pair_of(runs, a, it->second, b, rules));
    else if (!failed["B"].contains(short_key(*runs.back(), rules)))
      comparison.only.push_back({*runs.back(), "A"});
  }
  for (const auto& [key, runs] : in_b)
    if (!in_a.contains(key) && !failed["A"].contains(short_key(*runs.back(), rules)))
      comparison.only.push_back({*runs.back(), "B"});
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

Comparison compare_with_peer(const Peers& peers, const Results& b, const std::string& impl) {
  Comparison comparison;
  ComparisonRules rules;
  for (const auto& [key, runs] : group(b, rules, impl)) {
    Compared c;
    c.b = *runs.back();
    c.peer = peers.find(c.b);
    if (c.b.op.starts_with("roof.")) continue;  // of the device: no peer has any
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
