// SPDX-License-Identifier: Apache-2.0
// Shapes of real models: datasets/presets/*.csv, one file a family. The column `preset` names a
// row; a column `heads` sets that axis of every op that has it, `score.heads` that of one op and
// wins; all other columns are for people.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/tool.h"
#include "harness/ops/card.h"

namespace cli {

// $TOOLKIT_DATASETS, else `datasets` beside the executable (the build copies it there).
std::filesystem::path datasets_folder();

struct Preset {
  std::string name;
  std::string family;                                     // "qsa", "tq"
  std::map<std::string, std::string, std::less<>> cells;  // column -> text, empty ones left out
  // What of it concerns an op.
  harness::Coordinates coordinates(const harness::Card& card) const;
};

// Of the tool's families. Throws BadRequest where a file is missing or malformed.
std::vector<Preset> read_presets(const Tool& tool);
// Throws BadRequest with the nearest name.
Preset find_preset(const Tool& tool, const std::string& name);

}  // namespace cli
