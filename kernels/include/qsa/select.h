// SPDX-License-Identifier: Apache-2.0
// qsa.select: score -> topk -> expand, in chunks of rows whose logits fit the workspace.
//
// Rows per chunk = max(1, workspace_bytes div max(4*W*S, 1)); k = token_topk div C; the result does not depend on the
// chunks. Inputs and meanings: qsa/score.h, qsa/expand.h. Judged as: the first full*C columns are C ascending tokens
// of each selected block, blocks distinct, their order free; the tail and the -1 exact. Because scores are f32 sums,
// one block may stand for another only where their oracle scores differ by less than the two score bounds.
#pragma once

#include "qsa/expand.h"
#include "qsa/score.h"

namespace qsa::select {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"q", Role::input, kFloat, "R,H,D", "index queries, any strides"},
    {"k_cache", Role::input, kFloat, "P,S,1,D", "compressed keys, any strides"},
    {"page_table", Role::input, kIndex, "N,W", "page id per column block of S; outside [0,P): -inf"},
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): padding"},
    {"query_positions", Role::input, kIndex, "R", "position of a row; < 0: nothing visible"},
    {"sequence_lengths", Role::input, kIndex, "N", "tokens of a request, this step's included"},
    {"indices", Role::output, dtypes(TK_I32), "R,token_topk+C-1", "token indices, -1 for none"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"compress_ratio", ScalarKind::integer, nullptr, "C, tokens per compressed key, > 0"},
    {"token_topk", ScalarKind::integer, nullptr, "K*C, tokens of the selected blocks"},
    {"score_scale", ScalarKind::real, "", "divisor of the score sum, > 0; default sqrt(D)"},
    {"workspace_bytes", ScalarKind::integer, "134217728", "logits of one chunk of rows fit this"},
};

inline int64_t rows_per_chunk(const Args& a) {
  const int64_t row = 4 * a.tensor("page_table").size(1) * a.tensor("k_cache").size(1);
  const int64_t rows = a.integer("workspace_bytes") / (row > 1 ? row : 1);
  return rows > 1 ? rows : 1;
}

inline void check(const Args& a) {
  expand::check_width(a);
  require_positive(a, "q", 1, 2);
  require_countable(a, "page_table", "k_cache");
  require_integer(a, "workspace_bytes", 1);
  if (a.given("score_scale"))
    require(a.real("score_scale") > 0, a, "score_scale", "a divisor > 0", std::string(a.text("score_scale")));
  require_positive(a, "sequence_lengths", 0);
  if (a.tensor("q").size(0) > 0) {
    require_positive(a, "k_cache", 0, 1);
    require_positive(a, "page_table", 0, 1);
  }
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  return {{"indices", TK_I32, {a.tensor("q").size(0), expand::width(a)}}};
}

inline constexpr Contract contract{"qsa.select", "score, top-k and expand over chunks of rows", kTensors, kScalars,
                                   check, outputs};

}  // namespace qsa::select
