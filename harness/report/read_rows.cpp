// SPDX-License-Identifier: Apache-2.0
#include "harness/report/read_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/plugins/errors.h"
#include "harness/report/schema.h"
#include "harness/report/table.h"

namespace harness {

namespace {

constexpr auto kAmounts = std::to_array<std::string_view>(
    {"time_us_min", "time_us_q1", "time_us_median", "time_us_q3", "median_lo_us", "median_hi_us",
     "bytes", "flops", "intensity", "gbps", "gflops", "roof_gbps", "roof_gflops", "roof_pct"});

void check(const Table& table, const Record& record) {
  const std::string status = record.text("status");
  if (!status_from(status))
    throw BadRequest(
        fmt::format("{}:{}: unknown status '{}'; expected pass, fail, error, timeout, crash, skip, "
                    "unsupported, inconclusive or impossible",
                    table.file, record.line, status));
  for (const auto column : kAmounts)
    if (const auto value = table.number(record, column); value && !(*value >= 0 && *value < INFINITY))
      throw BadRequest(fmt::format("{}:{}: {}: expected a number from 0 on, got '{}'", table.file,
                                   record.line, column, record.text(column)));
}

}  // namespace

std::vector<Row> read_rows(const std::string& path) {
  std::vector<Row> rows;
  const Table table = read_table(path, {"op", "case_id", "status"});
  check_schema(table);
  for (const Record& record : table.records) {
    check(table, record);
    Row& row = rows.emplace_back();
    for (const auto& [column, text] : record.cells)
      if (std::ranges::find(kColumns, column) != kColumns.end()) row.set(column, text);
  }
  return rows;
}

std::optional<Status> status_from(std::string_view word) {
  for (int i = 0; i <= int(Status::impossible); ++i)
    if (const auto status = static_cast<Status>(i); name_of(status) == word) return status;
  return {};
}

std::optional<double> number_in(const Row& row, std::string_view column) {
  const auto value = number_from(row.text(column));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace harness
