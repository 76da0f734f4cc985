// SPDX-License-Identifier: Apache-2.0
// Generated cases of a TurboQuant op, judged by its card.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "harness/generate/axes.h"
#include "harness/ops/card.h"
#include "harness/ops/tq_cards.h"

namespace tq_test {

inline const harness::Card& card(std::string_view op) { return *harness::find_card(op); }

// The case of these coordinates, checked as a dump would be.
inline harness::Case made(std::string_view op, std::string_view axes, uint64_t seed = 1) {
  harness::Case c = card(op).generate(harness::parse_coordinates(axes), seed);
  const harness::HostCall call(c);
  toolkit::Args(card(op).contract(), call.call()).check(false);
  card(op).check_data(c);
  return c;
}

inline reference::Result oracle(const harness::Case& c) {
  const harness::HostCall call(c);
  return reference::find(c.op)(toolkit::Args(card(c.op).contract(), call.call()));
}

inline harness::Verdict judged(const harness::Case& c, const harness::TensorMap& outputs) {
  return card(c.op).judge(c, oracle(c), outputs);
}

inline bool mentions(const std::vector<std::string>& lines, std::string_view text) {
  for (const std::string& line : lines)
    if (line.find(text) != std::string::npos) return true;
  return false;
}

// The oracle's own results, rounded, pass on every entry of the suite; every fault that an entry has a place for is
// noticed there, and has a place in at least `places` entries.
inline void expect_suite_judges(std::string_view op, int places) {
  std::map<std::string, int> planted;
  for (const harness::Fault& fault : card(op).faults()) planted[std::string(fault.name)] = 0;
  std::set<std::string> names;
  for (const harness::SuiteEntry& entry : card(op).suite()) {
    EXPECT_TRUE(names.insert(std::string(entry.name)).second) << "two entries " << entry.name;
    const harness::Case c = made(op, entry.axes);
    const harness::TensorMap right = harness::oracle_outputs(c);
    const reference::Result truth = oracle(c);
    const harness::Verdict verdict = card(op).judge(c, truth, right);
    if (verdict.status == harness::Status::skip) continue;
    EXPECT_EQ(verdict.status, harness::Status::pass) << entry.name << ": " << verdict.first_bad;
    EXPECT_LE(verdict.used_share, 0.5) << entry.name;
    for (const harness::Fault& fault : card(op).faults()) {
      harness::TensorMap wrong;
      for (const auto& [name, tensor] : right) wrong.emplace(name, tensor.packed());
      if (!fault.plant(c, wrong)) continue;
      ++planted[std::string(fault.name)];
      const harness::Verdict bad = card(op).judge(c, truth, wrong);
      EXPECT_EQ(bad.status, harness::Status::fail) << entry.name << ": " << fault.name << " was not noticed";
      EXPECT_FALSE(bad.first_bad.empty()) << entry.name << ": " << fault.name;
    }
    const harness::Cost cost = card(op).cost(c);
    EXPECT_GT(cost.bytes, 0) << entry.name;
    EXPECT_GE(cost.flops, 0) << entry.name;
  }
  for (const auto& [fault, count] : planted) EXPECT_GE(count, places) << fault << " has hardly a place in the suite";
}

// The coordinates make the same bits again, and another seed makes others.
inline void expect_repeatable(std::string_view op, std::string_view tensor) {
  const auto bytes = [&](uint64_t seed) {
    const harness::Tensor t = made(op, "", seed).inputs.find(tensor)->second.packed();
    return std::string(reinterpret_cast<const char*>(t.data()), size_t(t.count() * toolkit::bytes_of(t.dtype)));
  };
  EXPECT_EQ(bytes(7), bytes(7));
  EXPECT_NE(bytes(7), bytes(8));
}

}  // namespace tq_test
