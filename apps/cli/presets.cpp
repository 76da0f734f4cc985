// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <fmt/format.h>
#include <libfccp/csv.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "harness/ops/names.h"
#include "harness/plugins/errors.h"

namespace cli {

using harness::BadRequest;

namespace {

constexpr size_t kMostColumns = 64;

std::vector<std::string> split_header(const std::string& line) {
  std::vector<std::string> names(1);
  for (const char c : line)
    if (c == ',')
      names.emplace_back();
    else if (c != '"' && c != '\r' && c != ' ')
      names.back() += c;
  return names;
}

// fccp wants the number of columns at compile time: the file's own names first, then names that no
// file has.
template <size_t... I>
std::vector<std::map<std::string, std::string>> read_rows(const std::string& file,
                                                          std::index_sequence<I...>) {
  const std::vector<std::string> header = [&] {
    io::LineReader lines(file);
    const char* line = lines.next_line();
    return split_header(line ? line : "");
  }();
  if (header.size() > kMostColumns)
    throw BadRequest(
        fmt::format("{}: expected at most {} columns, got {}", file, kMostColumns, header.size()));
  std::array<std::string, kMostColumns> names;
  for (size_t i = 0; i < kMostColumns; ++i)
    names[i] = i < header.size() ? header[i] : fmt::format("\x01{}", i);
  io::CSVReader<kMostColumns, io::trim_chars<' '>, io::double_quote_escape<',', '"'>> csv(file);
  csv.read_header(io::ignore_missing_column, names[I]...);
  std::array<char*, kMostColumns> cells{};
  std::vector<std::map<std::string, std::string>> rows;
  while (csv.read_row(cells[I]...)) {
    auto& row = rows.emplace_back();
    for (size_t i = 0; i < header.size(); ++i)
      if (cells[i] && *cells[i]) row[header[i]] = cells[i];
  }
  return rows;
}

}  // namespace

std::filesystem::path datasets_folder() {
  if (const char* set = std::getenv("TOOLKIT_DATASETS"); set && *set) return set;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path() / "datasets";
}

harness::Coordinates Preset::coordinates(const harness::Card& card) const {
  harness::Coordinates at;
  if (!card.op().starts_with(family + ".")) return at;
  const std::string op(card.op().substr(family.size() + 1));
  for (const auto& axis : card.axes()) {
    const std::string name(axis.name);
    for (const auto& column : {name, op + "." + name})  // the op's own column wins
      if (const auto it = cells.find(column); it != cells.end()) at[name] = it->second;
  }
  return at;
}

std::vector<Preset> read_presets(const Tool& tool) {
  std::vector<Preset> presets;
  for (const auto family : tool.families) {
    const auto file = datasets_folder() / "presets" /
                      (family == "tq" ? "turboquant.csv" : fmt::format("{}.csv", family));
    try {
      for (auto& cells : read_rows(file.string(), std::make_index_sequence<kMostColumns>())) {
        const std::string name = cells["preset"];
        if (name.empty())
          throw BadRequest(fmt::format("{}: a row has no name in column preset", file.string()));
        cells.erase("preset");
        presets.push_back({name, std::string(family), std::move(cells)});
      }
    } catch (const io::error::base& e) {
      throw BadRequest(fmt::format(
          "presets: {} (TOOLKIT_DATASETS names the folder that holds presets/)", e.what()));
    }
  }
  return presets;
}

Preset find_preset(const Tool& tool, const std::string& name) {
  std::vector<std::string> names;
  for (auto& preset : read_presets(tool)) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  throw BadRequest(fmt::format("unknown preset '{}'{}; `list` shows the presets", name,
                               harness::nearest_hint(name, names)));
}

}  // namespace cli
