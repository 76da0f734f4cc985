// SPDX-License-Identifier: Apache-2.0
#include "harness/report/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "harness/plugins/errors.h"
#include "harness/report/read_rows.h"
#include "harness/report/table.h"

namespace harness {

namespace {

std::optional<double> positive(const Row& row, std::string_view column) {
  const auto value = number_in(row, column);
  return value && *value > 0 ? value : std::nullopt;
}

bool matches(const std::string& device, const std::string& words) {
  std::istringstream all(words);
  for (std::string word; all >> word;)
    if (device.find(word) == std::string::npos) return false;
  return true;
}

std::optional<double> datasheet_value(const Table& table, const Record& record,
                                      const char* column) {
  const auto value = table.number(record, column);
  if (value && !(*value > 0))
    throw BadRequest(fmt::format("{}:{}: {}: expected a number above 0 or nothing, got '{}'",
                                 table.file, record.line, column, record.text(column)));
  return value;
}

void add_measured(const Row& row, std::vector<RoofLine>& roofs) {
  const std::string op = row.text("op"), id = row.text("case_id");
  const std::string label = id.starts_with(op + "/") ? id.substr(5) : op.substr(5);
  std::string source = row.text("roof_source");
  if (source.empty()) source = "measured, run " + row.text("run_id");
  if (row.text("status") != "pass") source += ", " + row.text("status");
  if (const std::string reason = row.text("reason"); !reason.empty()) source += ": " + reason;
  auto gbps = positive(row, "roof_gbps"), gflops = positive(row, "roof_gflops");
  if (!gbps && !gflops) gbps = positive(row, "gbps"), gflops = positive(row, "gflops");
  if (gflops) roofs.push_back({RoofLine::Kind::compute, label, *gflops, true, source});
  const bool cache = label.find("l2") != std::string::npos || row.text("l2") == "warm";
  if (gbps && !gflops)
    roofs.push_back(
        {cache ? RoofLine::Kind::cache : RoofLine::Kind::memory, label, *gbps, true, source});
}

// Percent of the time taken that the two roofs ask for; none where neither is known.
std::optional<double> percent(const Row& row, std::optional<double> gbps,
                              std::optional<double> gflops) {
  const auto time_us = positive(row, "time_us_median");
  if (!time_us) return {};
  double ideal_us = 0;
  if (gbps) ideal_us = number_in(row, "bytes").value_or(0) / *gbps * 1e-3;
  if (gflops) ideal_us = std::max(ideal_us, number_in(row, "flops").value_or(0) / *gflops * 1e-3);
  if (ideal_us <= 0) return {};
  return 100 * ideal_us / *time_us;
}

std::optional<double> value_of(const RoofLine* roof) {
  return roof ? std::optional(roof->value) : std::nullopt;
}

}  // namespace

std::vector<Datasheet> read_datasheets(const std::string& path) {
  const Table table = read_table(path, {"match", "gbps", "bf16_tflops", "source"});
  std::vector<Datasheet> datasheets;
  for (const Record& r : table.records) {
    auto gflops = datasheet_value(table, r, "bf16_tflops");
    if (gflops) *gflops *= 1000;
    datasheets.push_back(
        {r.text("match"), datasheet_value(table, r, "gbps"), gflops, r.text("source")});
  }
  return datasheets;
}

bool is_roof(const Row& row) { return row.text("op").starts_with("roof."); }

bool sets_roof(const Row& row) {
  const std::string status = row.text("status");
  return is_roof(row) && (status == "pass" || status == "inconclusive");
}

std::vector<RoofLine> roofs_of(const std::string& device, const std::vector<Row>& rows,
                               const std::vector<Datasheet>& datasheets) {
  std::vector<RoofLine> roofs;
  // Several runs measure the same roofs; of each the highest stands, which is what the device can
  // do.
  std::vector<RoofLine> measured;
  for (const Row& row : rows)
    if (sets_roof(row) && row.text("device") == device) add_measured(row, measured);
  for (const RoofLine& line : measured) {
    const auto same = std::ranges::find_if(
        roofs, [&](const RoofLine& r) { return r.kind == line.kind && r.label == line.label; });
    if (same == roofs.end())
      roofs.push_back(line);
    else if (line.value > same->value)
      *same = line;
  }
  for (const Datasheet& sheet : datasheets) {
    if (!matches(device, sheet.match)) continue;
    if (sheet.gbps)
      roofs.push_back({RoofLine::Kind::memory, "datasheet", *sheet.gbps, false, sheet.source});
    if (sheet.gflops)
      roofs.push_back(
          {RoofLine::Kind::compute, "datasheet, bf16", *sheet.gflops, false, sheet.source});
    break;
  }
  return roofs;
}

const RoofLine* best_roof(const std::vector<RoofLine>& roofs, RoofLine::Kind kind, bool measured) {
  const RoofLine* best = nullptr;
  for (const RoofLine& roof : roofs)
    if (roof.kind == kind && roof.measured == measured && (!best || roof.value > best->value))
      best = &roof;
  return best;
}

std::optional<RoofShare> share_of_roof(const Row& row, const std::vector<RoofLine>& roofs) {
  // What the run itself held the row against comes first.
  const bool own_measured = row.text("roof_source").find("datasheet") == std::string::npos;
  if (const auto own = positive(row, "roof_pct")) return RoofShare{*own, own_measured};
  if (const auto own = percent(row, positive(row, "roof_gbps"), positive(row, "roof_gflops")))
    return RoofShare{*own, own_measured};
  const bool warm = row.text("l2") == "warm";
  for (const bool measured : {true, false}) {
    const auto kind = warm ? RoofLine::Kind::cache : RoofLine::Kind::memory;
    const RoofLine* memory = best_roof(roofs, kind, measured);
    // A kernel bound by memory is not 1 % of an arithmetic roof: without its first roof it has
    // none.
    if (!memory) continue;
    const RoofLine* compute = best_roof(roofs, RoofLine::Kind::compute, measured);
    if (const auto share = percent(row, value_of(memory), value_of(compute)))
      return RoofShare{*share, measured};
  }
  return {};
}

}  // namespace harness
