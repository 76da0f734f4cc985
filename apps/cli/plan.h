// SPDX-License-Identifier: Apache-2.0
// Which cases a command means: ops times suite entries, or times a preset and axes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/sweep.h"
#include "harness/ops/card.h"

namespace cli {

struct Planned {
  const harness::Card* card;
  std::string id;
  std::string preset;
  harness::Coordinates at;
  std::string selection;  // the flags that select this case alone: "qsa.attend -a rows=4 --seed 1"
};

struct Plan {
  std::vector<Planned> cases;
  std::vector<std::string> left_out;  // ops without the asked axis, preset or fault: one line each
};

// The ops that the words mean; all of the tool's families where there is none. Throws BadRequest.
std::vector<const harness::Card*> resolve_ops(const Tool& tool,
                                              const std::vector<std::string>& words);

// Throws BadRequest for unknown names and for a filter that leaves nothing (unless --allow-empty).
Plan make_plan(const Tool& tool, const Options& options);

// The fault of that name; nothing where the op has none of that name.
std::optional<harness::Fault> find_fault(const harness::Card& card, const std::string& name);

// As a shell reads it back: quoted where it has to be.
std::string shell_word(const std::string& word);

}  // namespace cli
