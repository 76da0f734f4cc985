// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "harness/compare/shapes.h"
#include "harness/plugins/errors.h"
#include "harness/report/table.h"

namespace harness {

namespace {

const Card& card_of(const Table& table, const Record& r) {
  const Card* card = find_card(r.text("op"));
  if (!card) throw BadRequest(fmt::format("{}:{}: op: there is no '{}'", table.file, r.line, r.text("op")));
  return *card;
}

std::optional<double> time_in(const Table& table, const Record& r, std::string_view column) {
  const auto us = table.number(r, column);
  if (us && !(*us > 0 && std::isfinite(*us)))
    throw BadRequest(fmt::format("{}:{}: {}: expected more than 0 and finite, got {}", table.file, r.line, column, *us));
  return us;
}

bool is_shape(const Row& row, const Target& target) {
  return row.text("op") == target.op && row.text("l2") == "cold" &&
         is_case(*find_card(target.op), coordinates_of(row.text("case_id")), shape_coordinates(target.axes));
}

}  // namespace

std::vector<Target> read_targets(const std::string& file) {
  const Table table = read_table(file, {"name", "op", "axes", "best_peer_us", "must_us", "goal_us"});
  std::vector<Target> targets;
  for (const Record& r : table.records) {
    const Card& card = card_of(table, r);
    try {
      for (const auto& [axis, value] : shape_coordinates(r.text("axes")))
        if (std::ranges::none_of(card.axes(), [&](const Axis& a) { return a.name == axis; }))
          throw std::invalid_argument(fmt::format("{} has no axis '{}'", card.op(), axis));
    } catch (const std::invalid_argument& e) {
      throw BadRequest(fmt::format("{}:{}: axes: {}", table.file, r.line, e.what()));
    }
    targets.push_back({r.text("name"), r.text("op"), r.text("axes"), time_in(table, r, "best_peer_us"),
                       time_in(table, r, "must_us"), time_in(table, r, "goal_us")});
  }
  return targets;
}

std::string TargetResult::verdict() const {
  if (!us) return "not measured";
  if (target.goal_us && *us <= *target.goal_us) return "goal";
  if (!missed()) return "met";
  return fmt::format("missed by {:.1f} %", 100 * (*us / *target.must_us - 1));
}

std::vector<TargetResult> hold_to_targets(const std::vector<Target>& targets, const std::vector<Row>& rows,
                                          const std::vector<Row>& peers) {
  std::vector<TargetResult> results;
  for (const Target& target : targets) {
    TargetResult result{target, {}, {}, {}};
    for (const Row& row : rows) {
      const auto us = number_from(row.text("time_us_median"));
      if (!us || row.text("status") != "pass" || row.text("impl").starts_with("oracle") || !is_shape(row, target)) continue;
      if (result.us && *result.us <= *us) continue;
      result.us = us;
      result.impl = row.text("impl");
    }
    for (const Row& row : peers)
      if (is_shape(row, target)) result.peer_us = number_from(row.text("time_us_median"));
    results.push_back(std::move(result));
  }
  // What is left to do first: missed ones by how far, then what was not measured; the rest as in the file.
  const auto place = [](const TargetResult& r) { return r.missed() ? -*r.us / *r.target.must_us : r.us ? 1 : 0; };
  std::ranges::stable_sort(results, std::less<>(), place);
  return results;
}

std::string summary_of(const std::vector<TargetResult>& results) {
  const auto count = [&](auto which) { return std::ranges::count_if(results, which); };
  const auto measured = count([](const auto& r) { return r.us.has_value(); });
  const auto missed = count([](const auto& r) { return r.missed(); });
  return fmt::format("{} of {} met, {} of them the goal; {} missed, {} not measured", measured - missed, results.size(),
                     count([](const auto& r) { return r.verdict() == "goal"; }), missed,
                     std::ssize(results) - measured);
}

}  // namespace harness
