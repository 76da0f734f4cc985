// SPDX-License-Identifier: Apache-2.0
#include "cli/resume.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <vector>

#include "harness/plugins/errors.h"
#include "harness/report/read_rows.h"

namespace cli {

namespace {

constexpr auto kKey =
    std::to_array<std::string_view>({"case_id", "tool", "op", "impl", "seed", "device", "driver",
                                     "toolkit", "l2", "launch", "repro"});

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
  if (std::error_code error;
      !std::filesystem::exists(csv, error) || std::filesystem::is_empty(csv, error))
    return rows;
  for (auto& row : harness::read_rows(csv)) {
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
