// SPDX-License-Identifier: Apache-2.0
// qsa.score: weight-free ReLU scores of a row against the compressed keys of its request.
//
//   visible_blocks[i] = max(0, min((pos+1) div C, len div C)), len = 0 where the request is outside [0,N); NOT clamped
//   to the columns (a kernel may emit a negative one: judged after max(.,0)).
//   logits[i][c] = sum_h max(0, q[i,h] . k[c]) / divisor for c < visible with a live page, else -inf; the page of c is
//   page_table[r][c div S]; a page id outside [0,P) or a column beyond W*S is no live page.
//   A NaN dot product contributes 0 (fmax rule). divisor = score_scale (a DIVISOR), default sqrt(D).
// Integer division truncates toward zero; a position or length below 0 shows nothing.
#pragma once

#include <cmath>

#include "toolkit/shape_rules.h"

namespace qsa::score {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"q", Role::input, kFloat, "R,H,D", "index queries, any strides"},
    {"k_cache", Role::input, kFloat, "P,S,1,D", "compressed keys, any strides, a dtype of its own"},
    {"page_table", Role::input, kIndex, "N,W", "page id per column block of S; outside [0,P): -inf"},
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): padding"},
    {"query_positions", Role::input, kIndex, "R", "position of a row; < 0: nothing visible"},
    {"sequence_lengths", Role::input, kIndex, "N", "tokens of a request, this step's included"},
    {"logits", Role::output, dtypes(TK_F32), "R,columns", "scores, -inf where nothing is visible"},
    {"visible_blocks", Role::output, dtypes(TK_I32), "R", "complete groups that a row may see"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"compress_ratio", ScalarKind::integer, nullptr, "C, tokens per compressed key, > 0"},
    {"num_columns", ScalarKind::integer, "", "columns of logits, >= 0; default W*S"},
    {"score_scale", ScalarKind::real, "", "divisor of the sum, > 0; default sqrt(D)"},
};

inline int64_t columns(const Args& a) {
  if (a.given("num_columns")) return a.integer("num_columns");
  return a.tensor("page_table").size(1) * a.tensor("k_cache").size(1);
}
inline double divisor(const Args& a) {
  return a.given("score_scale") ? a.real("score_scale") : std::sqrt(double(a.tensor("q").size(2)));
}

inline void check(const Args& a) {
  require_integer(a, "compress_ratio", 1);
  require_positive(a, "q", 1, 2);
  require_countable(a, "page_table", "k_cache");
  if (a.given("num_columns")) require_integer(a, "num_columns", 0);
  if (a.given("score_scale"))
    require(a.real("score_scale") > 0, a, "score_scale", "a divisor > 0", std::string(a.text("score_scale")));
  if (a.tensor("q").size(0) > 0) {
    require_positive(a, "k_cache", 0, 1);
    require_positive(a, "page_table", 0, 1);
  }
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const int64_t rows = a.tensor("q").size(0);
  return {{"logits", TK_F32, {rows, columns(a)}}, {"visible_blocks", TK_I32, {rows}}};
}

inline constexpr Contract contract{"qsa.score", "ReLU scores of rows against paged compressed keys", kTensors,
                                   kScalars, check, outputs};

}  // namespace qsa::score
