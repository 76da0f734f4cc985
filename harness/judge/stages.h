// SPDX-License-Identifier: Apache-2.0
// A qsa.step taken apart: every stage is judged alone on the inputs it really had, so that one wrong stage is named and
// those behind it are not blamed.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/verdict.h"
#include "harness/tensors/case.h"

namespace harness {

inline constexpr std::array<std::string_view, 6> kStages{"compress", "store", "score", "topk", "expand", "attend"};

struct StageCase {
  std::string stage;  // "score"; "ring" is the store of the raw keys into the ring
  Case made;          // op "qsa.score", its results in `actual`
};

// A stage whose given input is not what the stage before put out.
struct BrokenLink {
  std::string input;     // "score.k_cache"
  std::string upstream;  // "store.cache"
};

// True where the case is a step with results by stage.
bool has_stages(const Case& step);
// The stages that have results in `actual` ("score.logits" ...), in their order. An input that is not given comes from the
// upstream stage's result, else from the tensor that all stages share. Throws toolkit::Violation where it is nowhere.
std::vector<StageCase> stage_cases(const Case& step, const TensorMap& actual);
std::vector<BrokenLink> broken_links(const Case& step, const TensorMap& actual);

// Contracts of all stages that have results, and their shapes; throws toolkit::Violation.
void check_stages(const Case& step);

struct StageVerdict {
  std::string stage;  // a stage, "ring" or "link"
  Verdict verdict;
};
// Every stage that has results, judged with its own oracle and card; "link" only where a hand-over is broken.
std::vector<StageVerdict> judge_each_stage(const Case& step, const TensorMap& actual);

// The same as one verdict. The reason begins with the stage or link that is at fault:
// "score: logits: 12 of 468 elements beyond their bound".
Verdict judge_stages(const Case& step, const TensorMap& actual);

}  // namespace harness
