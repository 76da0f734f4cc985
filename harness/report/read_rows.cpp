// SPDX-License-Identifier: Apache-2.0
#include "harness/report/read_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

std::string contents(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw BadRequest(fmt::format("{}: is a folder; expected a CSV of rows", path));
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw BadRequest(fmt::format("{}: cannot be read; expected a CSV of rows", path));
  return text.str();
}

std::optional<double> parse(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

}  // namespace

std::vector<std::vector<std::string>> read_csv(const std::string& path) {
  std::string text = contents(path);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // a spreadsheet's mark
  std::vector<std::vector<std::string>> records;
  std::vector<std::string> record(1);
  bool quoted = false;
  const auto end_record = [&] {
    if (record.back().ends_with('\r')) record.back().pop_back();
    if (record.size() > 1 || !record[0].empty()) records.push_back(std::move(record));
    record.assign(1, "");
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      record.back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      record.emplace_back();
    } else if (c == '\n' && !quoted) {
      end_record();
    } else {
      record.back() += c;
    }
  }
  if (quoted) throw BadRequest(fmt::format("{}: ends inside a quoted field; is it whole?", path));
  end_record();
  return records;
}

std::vector<Row> read_rows(const std::string& path) {
  const auto records = read_csv(path);
  if (records.empty())
    throw BadRequest(fmt::format("{}: is empty; expected the rows of a run (--csv FILE)", path));
  const auto& header = records[0];
  for (const auto name : {"op", "case_id", "status"})
    if (std::ranges::find(header, name) == header.end())
      throw BadRequest(fmt::format(
          "{}: has no column '{}'; expected the rows of a run (--csv FILE), got columns {}", path,
          name, fmt::format("{}", fmt::join(header, ",")).substr(0, 120)));
  std::vector<Row> rows;
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].size() != header.size())
      throw BadRequest(fmt::format("{}: row {} has {} fields, the header has {}", path, i,
                                   records[i].size(), header.size()));
    Row& row = rows.emplace_back();
    for (size_t j = 0; j < header.size(); ++j)
      if (std::ranges::find(kColumns, header[j]) != kColumns.end())
        row.set(header[j], records[i][j]);
  }
  return rows;
}

std::optional<double> number_in(const Row& row, std::string_view column) {
  return parse(row.text(column));
}

}  // namespace harness
