// SPDX-License-Identifier: Apache-2.0
#include "cli/resume.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <vector>

#include "harness/plugins/errors.h"

namespace cli {

namespace {

constexpr auto kKey =
    std::to_array<std::string_view>({"case_id", "tool", "op", "impl", "seed", "device", "driver",
                                     "toolkit", "l2", "launch", "repro"});

// RFC 4180; the writer keeps a row on one line.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[i++];
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += line[i];
  }
  return cells;
}

}  // namespace

std::string row_key(const harness::Row& row) {
  std::string key;
  for (const auto column : kKey) key += harness::csv_cell(row.text(column)) + ",";
  return key;
}

bool key_is_of(const std::string& key, const std::string& case_id) {
  return key.starts_with(harness::csv_cell(case_id) + ",");
}

harness::Status status_from(const std::string& word) {
  for (int i = 0; i <= int(harness::Status::impossible); ++i)
    if (const auto status = static_cast<harness::Status>(i); name_of(status) == word) return status;
  throw harness::BadRequest(fmt::format("unknown status '{}' in a row", word));
}

std::map<std::string, harness::Row> read_earlier_rows(const std::string& csv, std::string_view tool,
                                                      std::string_view git_sha) {
  std::map<std::string, harness::Row> rows;
  std::ifstream file(csv, std::ios::binary);
  std::string line;
  if (!std::getline(file, line)) return rows;
  if (line != harness::csv_header())
    throw harness::BadRequest(
        fmt::format("{}: has other columns than these rows (schema {}), so --resume cannot read it",
                    csv, harness::kSchema));
  while (std::getline(file, line)) {
    const auto cells = cells_of(line);
    if (cells.size() != harness::kColumns.size()) continue;
    harness::Row row;
    for (size_t i = 0; i < cells.size(); ++i) row.set(harness::kColumns[i], cells[i]);
    if (row.text("tool") == tool && row.text("git_sha") != git_sha)
      throw harness::BadRequest(fmt::format(
          "{}: holds rows of {} {}, and this is {}: --resume goes on with the rows of one binary; "
          "name another file",
          csv, tool, row.text("git_sha"), git_sha));
    rows[row_key(row)] = std::move(row);
  }
  return rows;
}

}  // namespace cli
