// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>

#include "harness/generate/axes.h"
#include "harness/plugins/errors.h"
#include "harness/report/table.h"

namespace harness {

namespace {

const std::regex kPlaceholder(R"(\{([A-Za-z]+)\})");

// "rows=4 lens=5*3": rows is 4 and lens 5,5,5.
Coordinates coordinates(const std::string& axes) {
  Coordinates at = parse_coordinates(axes);
  for (auto& [axis, value] : at) {
    const size_t star = value.find('*');
    if (star == std::string::npos) continue;
    const std::string one = value.substr(0, star);
    const int count = std::atoi(value.c_str() + star + 1);  // the placeholder took digits only
    value = one;
    for (int i = 1; i < count; ++i) value += "," + one;
  }
  return at;
}

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
    for (const auto& [axis, value] : coordinates(rule.axes))
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
  return coordinates(axes);
}

// `row` is that case: every coordinate that the table names has that value, given or by default.
bool is_case(const Card& card, const Coordinates& row, const Coordinates& wanted) {
  return std::ranges::all_of(card.axes(), [&](const Axis& axis) {
    const auto want = wanted.find(axis.name);
    if (want == wanted.end()) return true;
    const auto got = row.find(axis.name);
    return want->second == (got == row.end() ? axis.default_value : got->second);
  });
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

Coordinates coordinates_of(const std::string& case_id) {
  Coordinates at;
  const size_t colon = case_id.find(':');
  if (colon == std::string::npos) return at;
  std::string* value = nullptr;
  for (size_t from = colon + 1; from <= case_id.size();) {
    const size_t comma = std::min(case_id.find(',', from), case_id.size());
    const std::string word = case_id.substr(from, comma - from);
    from = comma + 1;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      value = &at[word.substr(0, equals)];
      *value = word.substr(equals + 1);
    } else if (value) {  // "lens=5,33" is one coordinate
      *value += "," + word;
    }
  }
  return at;
}

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
