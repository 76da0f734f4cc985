// SPDX-License-Identifier: Apache-2.0
#include "harness/report/row.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace harness {

namespace {

size_t index_of(std::string_view column) {
  const auto it = std::ranges::find(kColumns, column);
  if (it == kColumns.end()) throw std::logic_error("no column '" + std::string(column) + "'");
  return it - kColumns.begin();
}

}  // namespace

void Row::set(std::string_view column, Cell value) {
  if (const auto* text = std::get_if<std::string>(&value); text && text->empty()) value = {};
  cells_[index_of(column)] = std::move(value);
}
const Cell& Row::at(std::string_view column) const { return cells_[index_of(column)]; }
std::string Row::text(std::string_view column) const { return to_text(at(column)); }

std::string to_text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* integer = std::get_if<int64_t>(&cell)) return std::to_string(*integer);
  const auto* real = std::get_if<double>(&cell);
  if (!real) return {};
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, *real);
  return {buffer, end};
}

std::string csv_cell(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  const bool quote = text.find_first_of(",\"") != std::string::npos ||
                     (!text.empty() && (text.front() == ' ' || text.back() == ' '));
  if (!quote) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string csv_header() {
  std::string line;
  for (const auto column : kColumns) line += (line.empty() ? "" : ",") + std::string(column);
  return line;
}

std::string csv_line(const Row& row) {
  std::string line;
  for (size_t i = 0; i < kColumns.size(); ++i)
    line += (i ? "," : "") + csv_cell(to_text(row.cells()[i]));
  return line;
}

std::string json_line(const Row& row) {
  nlohmann::ordered_json object;
  for (size_t i = 0; i < kColumns.size(); ++i) {
    auto& value = object[std::string(kColumns[i])];  // null
    const Cell& cell = row.cells()[i];
    if (const auto* text = std::get_if<std::string>(&cell)) value = *text;
    if (const auto* integer = std::get_if<int64_t>(&cell)) value = *integer;
    if (const auto* real = std::get_if<double>(&cell); real && std::isfinite(*real)) value = *real;
  }
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace harness
