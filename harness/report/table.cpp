// SPDX-License-Identifier: Apache-2.0
#include "harness/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

std::string contents(const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw BadRequest(fmt::format("{}: cannot be read: it is a folder", file));
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  if (stream && stream.peek() != std::ifstream::traits_type::eof()) text << stream.rdbuf();
  if (!stream && !stream.eof())
    throw BadRequest(fmt::format("{}: cannot be read: {}", file, std::strerror(errno)));
  return text.str();
}

struct Line {
  int number;
  std::vector<std::string> cells;
};

std::vector<Line> lines_of(const std::string& file) {
  std::string text = contents(file);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // a spreadsheet's mark
  std::vector<Line> lines;
  int number = 1;
  Line line{number, {""}};
  bool quoted = false;
  const auto end_line = [&] {
    if (line.cells.back().ends_with('\r')) line.cells.back().pop_back();
    if (line.cells.size() > 1 || !line.cells[0].empty()) lines.push_back(std::move(line));
    line = {number, {""}};
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    number += c == '\n';
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      line.cells.back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      line.cells.emplace_back();
    } else if (c == '\n' && !quoted) {
      end_line();
    } else {
      line.cells.back() += c;
    }
  }
  if (quoted) throw BadRequest(fmt::format("{}: ends inside a quoted field; is it whole?", file));
  end_line();
  return lines;
}

}  // namespace

std::string Record::text(std::string_view column) const {
  const auto it = cells.find(column);
  return it == cells.end() ? std::string() : it->second;
}

std::optional<double> number_from(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<double> Table::number(const Record& record, std::string_view column) const {
  const std::string text = record.text(column);
  if (text.empty()) return {};
  if (const auto value = number_from(text)) return value;
  throw BadRequest(
      fmt::format("{}:{}: {}: expected a number, got '{}'", file, record.line, column, text));
}

Table read_table(const std::string& file, const std::vector<std::string>& required) {
  auto lines = lines_of(file);
  Table table{file, {}, {}};
  if (!lines.empty()) table.header = std::move(lines.front().cells);
  for (const auto& column : required)
    if (std::ranges::find(table.header, column) == table.header.end())
      throw BadRequest(fmt::format("{}:1: no column '{}'; expected {}", file, column,
                                   fmt::join(required, ", ")));
  for (size_t i = 1; i < lines.size(); ++i) {
    auto& cells = lines[i].cells;
    if (cells == table.header) continue;  // files that were put behind one another
    if (cells.size() != table.header.size())
      throw BadRequest(fmt::format("{}:{}: {} cells, the header has {}", file, lines[i].number,
                                   cells.size(), table.header.size()));
    Record& record = table.records.emplace_back();
    record.line = lines[i].number;
    for (size_t j = 0; j < cells.size(); ++j)
      if (!cells[j].empty()) record.cells[table.header[j]] = std::move(cells[j]);
  }
  return table;
}

}  // namespace harness
