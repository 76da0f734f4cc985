// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.select: the rows of score, topk and expand in turn. Beside the indices it gives the
// scores with their bounds ("scores"), because a judge has to know which blocks may stand for each
// other.
#include "qsa/select.h"

#include "reference/oracle.h"
#include "reference/qsa/expand.h"
#include "reference/qsa/score.h"
#include "reference/qsa/topk.h"

namespace reference {
namespace {

Result select(const toolkit::Args& a) {
  const int64_t rows = a.tensor("q").size(0), c = a.integer("compress_ratio"),
                k = a.integer("token_topk") / c;
  const int64_t columns = a.tensor("page_table").size(1) * a.tensor("k_cache").size(1);
  Output indices, scores;
  indices.dtype = TK_I32;
  indices.shape = {rows, ::qsa::expand::width(a)};
  scores.dtype = TK_F32;
  scores.shape = {rows, columns};
  Result result;
  if (rows > 0) {
    const Reader requests(a.tensor("token_to_req")), positions(a.tensor("query_positions")),
        lengths(a.tensor("sequence_lengths"));
    Scorer scorer(a, columns, ::qsa::score::divisor(a), c);
    for (int64_t i = 0; i < rows; ++i) {
      const RowScores s = scorer.row(i);
      const int64_t r = requests.integer(i);
      const int64_t length = r >= 0 && r < lengths.size(0) ? lengths.integer(r) : 0;
      const int64_t v = std::min(s.visible, columns);
      std::vector<int64_t> best = best_columns({s.value.begin(), s.value.begin() + v}, k);
      best.resize(size_t(k), -1);
      const std::vector<int64_t> tokens = expand_row(best, positions.integer(i), length, c);
      indices.integer.insert(indices.integer.end(), tokens.begin(), tokens.end());
      scores.value.insert(scores.value.end(), s.value.begin(), s.value.end());
      scores.bound.insert(scores.bound.end(), s.bound.begin(), s.bound.end());
      if (s.overflow)
        result.findings.push_back(
            "row " + std::to_string(i) +
            ": products of query and keys are beyond fp32; any choice among those blocks is right");
    }
  }
  result.outputs.emplace("indices", std::move(indices));
  result.outputs.emplace("scores", std::move(scores));
  return result;
}

const Registration registered("qsa.select", select);

}  // namespace
}  // namespace reference
