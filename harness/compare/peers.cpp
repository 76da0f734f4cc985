// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>

#include "harness/compare/shapes.h"
#include "harness/plugins/errors.h"
#include "harness/report/table.h"

namespace harness {

namespace {

const std::regex kPlaceholder(R"(\{([A-Za-z]+)\})");

struct Rule {
  std::string peer_op, op, axes;
  std::regex shape;
  std::vector<std::string> names;  // of the placeholders, in order
};

Rule rule_of(const Table& table, const Record& r) {
  Rule rule{r.text("peer_op"), r.text("op"), r.text("axes"), {}, {}};
  const std::string shape = r.text("peer_shape");
  std::string pattern;
  auto at = shape.cbegin();
  const auto literal = [&](auto end) {
    for (; at != end; ++at) {
      if (std::string_view("|()[]{}.*+?^$\\").find(*at) != std::string_view::npos) pattern += '\\';
      pattern += *at;
    }
  };
  for (std::sregex_iterator it(shape.begin(), shape.end(), kPlaceholder), end; it != end; ++it) {
    literal((*it)[0].first);
    pattern += "([0-9]+)";
    rule.names.push_back((*it)[1]);
    at = (*it)[0].second;
  }
  literal(shape.cend());
  rule.shape = std::regex(pattern);
  const Card* card = find_card(rule.op);
  if (!card)
    throw BadRequest(fmt::format("{}:{}: op: there is no '{}'", table.file, r.line, rule.op));
  try {
    for (const auto& [axis, value] : shape_coordinates(rule.axes))
      if (std::ranges::none_of(card->axes(), [&](const Axis& a) { return a.name == axis; }))
        throw std::invalid_argument(fmt::format("{} has no axis '{}'", rule.op, axis));
  } catch (const std::invalid_argument& e) {
    throw BadRequest(fmt::format("{}:{}: axes: {}", table.file, r.line, e.what()));
  }
  return rule;
}

// The coordinates of the peer's shape; nothing where it is none of this rule.
std::optional<Coordinates> match(const Rule& rule, const std::string& op,
                                 const std::string& shape) {
  std::smatch found;
  if (op != rule.peer_op || !std::regex_match(shape, found, rule.shape)) return {};
  std::string axes = rule.axes;
  for (size_t i = 0; i < rule.names.size(); ++i) {
    const std::string name = "{" + rule.names[i] + "}";
    for (size_t p = axes.find(name); p != std::string::npos; p = axes.find(name))
      axes.replace(p, name.size(), found[i + 1]);
  }
  return shape_coordinates(axes);
}

// Nothing where the cell is empty: a shape that the peer did not time in that state.
std::optional<double> time_in(const Table& table, const Record& r, std::string_view column) {
  const auto us = table.number(r, column);
  if (us && !(*us > 0 && std::isfinite(*us)))
    throw BadRequest(fmt::format("{}:{}: {}: expected more than 0 and finite, got {}", table.file,
                                 r.line, column, *us));
  return us;
}

}  // namespace

Peers::Peers(const std::string& shapes, const std::string& times) {
  const Table rules_table = read_table(shapes, {"peer_op", "peer_shape", "op", "axes"});
  std::vector<Rule> rules;
  for (const Record& r : rules_table.records) rules.push_back(rule_of(rules_table, r));
  const Table table = read_table(times, {"op", "shape", "cold_us", "warm_us"});
  for (const Record& r : table.records) {
    const std::string op = r.text("op"), shape = r.text("shape");
    const auto cold = time_in(table, r, "cold_us"), warm = time_in(table, r, "warm_us");
    bool known = false;
    for (const Rule& rule : rules) {
      const auto at = match(rule, op, shape);
      if (!at) continue;
      known = true;
      entries_.push_back({rule.op, *at, op, shape, cold, warm});
    }
    if (!known && op != "empty") unknown_.push_back(op + " " + shape);
  }
}

std::optional<PeerTime> Peers::find(const Timing& row) const {
  const Card* card = find_card(row.op);
  if (!card || row.launch != "graph" || (row.l2 != "cold" && row.l2 != "warm")) return {};
  const Coordinates at = coordinates_of(row.case_id);
  for (const Entry& e : entries_) {
    const auto& us = row.l2 == "cold" ? e.cold_us : e.warm_us;
    if (e.op == row.op && us && is_case(*card, at, e.at))
      return PeerTime{e.peer_op, e.peer_shape, *us};
  }
  return {};
}

std::vector<Row> peer_rows(const Peers& peers, const std::vector<Row>& rows,
                           const std::string& label) {
  std::vector<Row> all;
  std::set<std::string> seen;  // several implementations of a case
  for (const Row& row : rows) {
    Timing ours;
    ours.op = row.text("op");
    ours.case_id = row.text("case_id");
    ours.l2 = row.text("l2");
    ours.launch = row.text("launch");
    const auto found = peers.find(ours);
    if (!found || row.text("time_us_median").empty()) continue;
    Row peer;
    for (const auto column : {"op", "case_id", "shape", "preset", "backend", "device", "arch",
                              "dtype", "fp8_flavour", "l2", "launch", "bytes", "flops"})
      peer.set(column, row.text(column));
    peer.set("impl", label);
    peer.set("time_us_median", found->us);
    peer.set("reason", found->op + " " + found->shape);
    if (seen.insert(csv_line(peer)).second) all.push_back(std::move(peer));
  }
  return all;
}

}  // namespace harness
