// SPDX-License-Identifier: Apache-2.0
// qsa.topk: the k best blocks of each row, exactly.
//
// v = min(max(visible_blocks[i],0), columns). v <= k: 0..v-1 ascending, then -1 (scores are not looked at). Else the
// exact k largest of the first v scores; ties: the lower index wins; +inf > finite > -inf > NaN; -0.0 equals +0.0.
// Our output is ascending and deterministic. A verifier accepts any order in the first min(v,k) slots and any choice
// among exact ties, exactly -1 after them, and nothing else. Columns from v on may be uninitialised.
#pragma once

#include "toolkit/shape_rules.h"

namespace qsa::topk {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"logits", Role::input, dtypes(TK_F32), "R,?", "scores; only the first visible_blocks[i] of a row are read"},
    {"visible_blocks", Role::input, kIndex, "R", "candidates of a row; below 0 counts as 0"},
    {"block_indices", Role::output, dtypes(TK_I32), "R,k", "chosen columns, -1 where there are fewer than k"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"k", ScalarKind::integer, nullptr, "how many, >= 1"},
};

inline void check(const Args& a) { require_integer(a, "k", 1); }

inline std::vector<OutputSpec> outputs(const Args& a) {
  return {{"block_indices", TK_I32, {a.tensor("logits").size(0), a.integer("k")}}};
}

inline constexpr Contract contract{"qsa.topk", "the exact k best blocks of each row", kTensors, kScalars, check,
                                   outputs};

}  // namespace qsa::topk
