// SPDX-License-Identifier: Apache-2.0
// Helpers of the op tests: small cases by hand, what an oracle says, and the promises that every
// card keeps.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <set>

#include "harness/generate/axes.h"
#include "harness/generate/fill.h"
#include "harness/ops/card.h"
#include "reference/oracle.h"
#include "toolkit/args.h"

namespace check {

using namespace harness;

inline const Card& card_of(const std::string& op) {
  const Card* card = find_card(op);
  if (!card) throw std::logic_error("no card of " + op);
  return *card;
}

inline reference::Result oracle_of(const Case& c) {
  const HostCall call(c);
  const toolkit::Args args(card_of(c.op).contract(), call.call());
  args.check(false);
  return reference::find(c.op)(args);
}

// A case by hand; "ids" become i32.
inline Case make_case(const std::string& op, TensorMap inputs, ScalarMap scalars = {}) {
  Case c;
  c.op = op;
  c.inputs = std::move(inputs);
  c.scalars = std::move(scalars);
  return c;
}
inline Tensor ids(std::vector<int64_t> values) { return from_integers(TK_I32, values); }
inline Tensor ids(std::vector<int64_t> values, Shape shape) {
  return from_integers(TK_I32, values, std::move(shape));
}
inline Tensor longs(std::vector<int64_t> values) { return from_integers(TK_I64, values); }

// What a right kernel writes: the oracle's results rounded to their dtypes.
inline TensorMap right_results(const Case& c, const reference::Result& truth) {
  TensorMap out;
  const HostCall call(c);
  std::set<std::string> names;
  for (const auto& o :
       card_of(c.op).contract().outputs(toolkit::Args(card_of(c.op).contract(), call.call())))
    names.emplace(o.name);
  for (const auto& t : card_of(c.op).contract().tensors)
    if (t.role == toolkit::Role::in_place) names.insert(std::string(t.name));
  for (const std::string& name : names) {
    const auto it = truth.outputs.find(name);
    if (it == truth.outputs.end()) continue;
    const reference::Output& o = it->second;
    Tensor t = make_tensor(o.dtype, o.shape);
    for (int64_t i = 0; i < t.count(); ++i) {
      if (!o.bytes.empty()) {
        const size_t n = size_t(toolkit::bytes_of(o.dtype));
        std::memcpy(t.element(i), &o.bytes[size_t(i) * n], n);
      } else if (!o.integer.empty()) {
        t.set_integer(i, o.integer[size_t(i)]);
      } else {
        t.set_real(i, o.value[size_t(i)]);
      }
    }
    out.emplace(name, t);
  }
  return out;
}

inline Verdict judge(const Case& c, const TensorMap& results) {
  return card_of(c.op).judge(c, oracle_of(c), results);
}

inline Case suite_case(const std::string& op, std::string_view entry, uint64_t seed = 7) {
  for (const SuiteEntry& e : card_of(op).suite())
    if (e.name == entry) return card_of(op).generate(parse_coordinates(e.axes), seed);
  throw std::logic_error(op + " has no suite entry " + std::string(entry));
}

// Every case of the suite keeps the contract, its right result passes (0 rows: skip), and every
// fault that finds a place makes it fail. Every fault finds a place somewhere.
inline void expect_sound_suite(const std::string& op) {
  const Card& card = card_of(op);
  std::set<std::string_view> planted;
  for (const SuiteEntry& e : card.suite()) {
    SCOPED_TRACE(std::string(e.name));
    const Case c = card.generate(parse_coordinates(e.axes), 11);
    const reference::Result truth = oracle_of(c);
    const TensorMap right = right_results(c, truth);
    const Verdict v = card.judge(c, truth, right);
    EXPECT_EQ(name_of(v.status), e.name == "no-rows" ? "skip" : "pass") << v.reason << "\n"
                                                                        << v.first_bad;
    EXPECT_LE(v.used_share, 1.0);
    card.findings(c);
    EXPECT_GE(card.cost(c).bytes, 0);
    for (const Fault& f : card.faults()) {
      TensorMap broken;
      for (const auto& [name, t] : right) broken.emplace(name, t.packed());
      if (!f.plant(c, broken)) continue;
      planted.insert(f.name);
      const Verdict b = card.judge(c, truth, broken);
      EXPECT_EQ(name_of(b.status), "fail")
          << "planted " << f.name << ", worst share " << b.used_share;
      EXPECT_FALSE(b.reason.empty()) << f.name;
      EXPECT_FALSE(b.first_bad.empty()) << f.name;
    }
  }
  for (const Fault& f : card.faults())
    EXPECT_TRUE(planted.contains(f.name)) << f.name << " found no place in the suite";
}

inline bool has_finding(const std::vector<std::string>& findings, const std::string& part) {
  for (const std::string& f : findings)
    if (f.find(part) != std::string::npos) return true;
  return false;
}
inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& l : lines) text += l + "\n";
  return text;
}

}  // namespace check
