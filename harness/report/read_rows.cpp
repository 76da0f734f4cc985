// SPDX-License-Identifier: Apache-2.0
#include "harness/report/read_rows.h"

#include <algorithm>
#include <cmath>

#include "harness/report/table.h"

namespace harness {

std::vector<Row> read_rows(const std::string& path) {
  std::vector<Row> rows;
  for (const Record& record : read_table(path, {"op", "case_id", "status"}).records) {
    Row& row = rows.emplace_back();
    for (const auto& [column, text] : record.cells)
      if (std::ranges::find(kColumns, column) != kColumns.end()) row.set(column, text);
  }
  return rows;
}

std::optional<double> number_in(const Row& row, std::string_view column) {
  const auto value = number_from(row.text(column));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace harness
