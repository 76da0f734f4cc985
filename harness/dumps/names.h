// SPDX-License-Identifier: Apache-2.0
// What a tensor's name in a dump means for an op: input, truth, or a result to be judged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

enum class NameKind { unknown, input, expected, actual };

struct NamePlace {
  NameKind kind = NameKind::unknown;
  std::string name;  // in Case::inputs, expected or actual: "output", "score.logits"
};

class CaseNames {
 public:
  explicit CaseNames(const Card& card);
  // Throws toolkit::Violation for "actual.NAME" or "expected.NAME" that is no result of the op: ignoring a misspelt
  // result would mean that nothing is judged.
  NamePlace place_of(std::string_view name) const;
  // ", nearest is 'x'", or where a bare output was given: how results are written.
  std::string hint(std::string_view name) const;
  bool has_scalar(std::string_view name) const;
  std::vector<std::string> scalars() const;

 private:
  NamePlace step_place(std::string_view name) const;
  std::vector<const toolkit::Contract*> contracts_;  // the op's, and in a step those of its stages
  bool step_ = false;
};

}  // namespace harness
