// SPDX-License-Identifier: Apache-2.0
#include "cli/dump_flags.h"

#include "cli/plan.h"

namespace cli {

namespace {

template <class Map>
void assign(const std::string& flag, const std::vector<std::string>& texts, Map& into) {
  for (const auto& text : texts) {
    auto [name, value] = harness::split_assignment(flag, text);
    into[name] = value;
  }
}

}  // namespace

harness::LoadOptions load_options(const Options& options) {
  harness::LoadOptions load;
  load.op = options.op;
  assign("--set", options.set, load.set);
  assign("--map", options.map, load.map);
  assign("--tensor", options.tensor, load.tensors);
  assign("--as", options.as, load.as);
  return load;
}

std::string dump_flags(const Options& options) {
  std::string text;
  if (!options.op.empty()) text += " --op " + shell_word(options.op);
  const auto add = [&](const char* flag, const std::vector<std::string>& values) {
    for (const auto& value : values) text += std::string(flag) + shell_word(value);
  };
  add(" --set ", options.set);
  add(" --tensor ", options.tensor);
  add(" --map ", options.map);
  add(" --as ", options.as);
  return text;
}

}  // namespace cli
