// SPDX-License-Identifier: Apache-2.0
// `list`: what can be run, or what is in a dump.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/dispatch.h"
#include "cli/exit_code.h"
#include "cli/plan.h"
#include "cli/presets.h"
#include "cli/verbs.h"
#include "harness/dumps/bad_file.h"
#include "harness/dumps/dump.h"
#include "harness/plugins/errors.h"
#include "toolkit/dtype.h"

namespace cli {

namespace {

void list_op(const harness::Card& card) {
  fmt::print("{:<14}{}\n", card.op(), card.contract().summary);
  for (const auto& axis : card.axes())
    fmt::print("  axis   {:<30}{}\n", fmt::format("{}={}", axis.name, axis.default_value),
               axis.what);
  for (const auto& entry : card.suite()) fmt::print("  suite  {:<30}{}\n", entry.name, entry.axes);
  for (const auto& fault : card.faults()) fmt::print("  fault  {:<30}{}\n", fault.name, fault.what);
  fmt::print("\n");
}

void list_presets(const Tool& tool) {
  try {
    for (const auto& preset : read_presets(tool)) {
      const auto source = preset.cells.find("source");
      fmt::print("preset {:<34}{}\n", preset.name,
                 source == preset.cells.end() ? "" : source->second);
    }
  } catch (const harness::BadRequest& e) {
    fmt::print("presets: none ({})\n", e.what());
  }
}

// True where the word is a preset.
bool list_preset(const Tool& tool, const std::string& name) {
  for (const auto& preset : read_presets(tool)) {
    if (preset.name != name) continue;
    fmt::print("{}\n", name);
    for (const auto& [column, text] : preset.cells) fmt::print("  {:<20}{}\n", column, text);
    return true;
  }
  return false;
}

void list_file(const std::string& file) {
  const harness::Dump dump = harness::Dump::open(file);
  fmt::print("{}: {}, {} tensors\n", file, dump.format(), dump.entries().size());
  size_t width = 30;
  for (const auto& e : dump.entries()) width = std::max(width, e.name.size());
  for (const auto& e : dump.entries()) {
    const bool dense = e.strides == harness::dense_strides(e.shape);
    fmt::print(
        "  {:<{}}  {:<9}{:<20}{}{}\n", e.name.empty() ? "(unnamed)" : e.name, width,
        e.dtype ? std::string(toolkit::name_of(e.dtype)) : e.dtype_text + "?",
        toolkit::to_text(e.shape), dense ? "dense" : "strides " + toolkit::to_text(e.strides),
        e.storage.empty() ? "" : fmt::format(", view of {} at element {}", e.storage, e.offset));
  }
  for (const auto& [key, text] : dump.metadata())
    if (!key.starts_with("view.")) fmt::print("  {} = {}\n", key, text);
}

}  // namespace

int list(const Tool& tool, const VerbName&, const Options& options) {
  if (options.dispatch) return list_dispatch(tool, options);
  int code = kPass;
  if (options.files.empty()) {
    for (const auto* card : resolve_ops(tool, {}))
      fmt::print("{:<14}{}\n", card->op(), card->contract().summary);
    fmt::print("\n");
    list_presets(tool);
    fmt::print("\nAxes, suite and faults of an op, or shapes of a preset: {} list NAME\n",
               tool.name);
  }
  for (const auto& word : options.files) {
    std::error_code error;
    const bool is_path = std::filesystem::exists(word, error) ||
                         word.find('/') != std::string::npos || word.ends_with(".npy") ||
                         word.ends_with(".safetensors");
    try {
      if (is_path)
        list_file(word);
      else if (!list_preset(tool, word))
        list_op(*resolve_ops(tool, {word}).front());
    } catch (const harness::BadFile& e) {
      fmt::print(stderr, "{}: {}\n", tool.name, e.what());
      code = kUsage;
    } catch (const harness::BadRequest& e) {
      fmt::print(stderr, "{}: '{}' is no file, preset or op: {}\n", tool.name, word, e.what());
      code = kUsage;
    }
  }
  return code;
}

}  // namespace cli
