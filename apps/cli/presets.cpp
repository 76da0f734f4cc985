// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "harness/ops/names.h"
#include "harness/plugins/errors.h"
#include "harness/report/table.h"

namespace cli {

using harness::BadRequest;

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
    if (std::error_code error; !std::filesystem::exists(file, error))
      throw BadRequest(
          fmt::format("presets: {} is not there (TOOLKIT_DATASETS names the folder that holds "
                      "presets/)",
                      file.string()));
    for (auto& record : harness::read_table(file.string(), {"preset"}).records) {
      const std::string name = record.text("preset");
      if (name.empty())
        throw BadRequest(
            fmt::format("{}:{}: no name in column preset", file.string(), record.line));
      record.cells.erase("preset");
      presets.push_back({name, std::string(family), std::move(record.cells)});
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
