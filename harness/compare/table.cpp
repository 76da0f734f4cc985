// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/table.h"

#include <fmt/format.h>
#include <libfccp/csv.h>

#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

constexpr size_t kMostColumns = 40;  // that one reader asks for; fccp wants it at compile time

template <size_t... I>
Table read(const std::string& file, const std::vector<std::string>& required,
           std::vector<std::string> names, std::index_sequence<I...>) {
  const size_t wanted = names.size();
  if (wanted > kMostColumns) throw std::logic_error("more columns than kMostColumns");
  while (names.size() < kMostColumns)  // the rest are names that no file has
    names.push_back(fmt::format("\x01{}", names.size()));
  io::CSVReader<kMostColumns, io::trim_chars<>, io::double_quote_escape<',', '"'>> csv(file);
  csv.read_header(io::ignore_extra_column | io::ignore_missing_column, names[I]...);
  for (const auto& column : required)
    if (!csv.has_column(column))
      throw BadRequest(fmt::format("{}:1: no column '{}'; expected {}", file, column,
                                   fmt::join(required, ", ")));
  Table table{file, {}};
  std::array<char*, kMostColumns> cells{};
  while (csv.read_row(cells[I]...)) {
    Record& record = table.records.emplace_back();
    record.line = static_cast<int>(csv.get_file_line());
    for (size_t i = 0; i < wanted; ++i)
      if (cells[i] && *cells[i]) record.cells[names[i]] = cells[i];
    cells.fill(nullptr);
  }
  return table;
}

}  // namespace

std::string Record::text(const std::string& column) const {
  const auto it = cells.find(column);
  return it == cells.end() ? std::string() : it->second;
}

std::optional<double> Table::number(const Record& record, const std::string& column) const {
  const std::string text = record.text(column);
  if (text.empty()) return {};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw BadRequest(
        fmt::format("{}:{}: {}: expected a number, got '{}'", file, record.line, column, text));
  return value;
}

Table read_table(const std::string& file, const std::vector<std::string>& required,
                 const std::vector<std::string>& optional) {
  std::vector<std::string> names = required;
  names.insert(names.end(), optional.begin(), optional.end());
  try {
    return read(file, required, std::move(names), std::make_index_sequence<kMostColumns>());
  } catch (const io::error::can_not_open_file& e) {
    throw BadRequest(fmt::format("{}: cannot be read: {}", file, e.what()));
  } catch (const io::error::base& e) {
    throw BadRequest(fmt::format("{}: no CSV table: {}", file, e.what()));
  }
}

}  // namespace harness
