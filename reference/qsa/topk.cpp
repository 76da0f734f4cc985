// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.topk: sorts a whole row.
#include "qsa/topk.h"

#include <algorithm>
#include <numeric>

#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/qsa/topk.h"
#include "reference/reader.h"

namespace reference {

std::vector<int64_t> best_columns(const std::vector<double>& scores, int64_t k) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  if (int64_t(order.size()) > k) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) {
      const double a = scores[size_t(x)], b = scores[size_t(y)];
      return !std::isnan(a) &&
             (std::isnan(b) || a > b);  // NaN last; -0.0 > +0.0 is false both ways
    });
    order.resize(size_t(k));
    std::sort(order.begin(), order.end());
  }
  return order;
}

namespace {

Result topk(const toolkit::Args& a) {
  const Reader logits(a.tensor("logits")), visible(a.tensor("visible_blocks"));
  const int64_t rows = logits.size(0), columns = logits.size(1), k = a.integer("k");
  Output out;
  out.dtype = TK_I32;
  out.shape = {rows, k};
  out.integer.resize(size_t(rows * k), -1);
  for_each_row(rows, [&](int64_t i) {
    const int64_t v = std::min(std::max<int64_t>(visible.integer(i), 0), columns);
    std::vector<double> scores(static_cast<size_t>(v));
    for (int64_t c = 0; c < v; ++c) scores[size_t(c)] = logits.real(i, c);
    const std::vector<int64_t> best = best_columns(scores, k);
    std::copy(best.begin(), best.end(), out.integer.begin() + i * k);
  });
  Result result;
  result.outputs.emplace("block_indices", std::move(out));
  return result;
}

const Registration registered("qsa.topk", topk);

}  // namespace
}  // namespace reference
