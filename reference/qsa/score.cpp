// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.score.
//
// The bound of a logit. A kernel adds D products in fp32, in any order, perhaps on tensor cores,
// which cut each addend of a step instead of rounding it: an error of at most one fp32 ulp (2^-23)
// of the largest magnitude per addend and step. With A = sum |q||k| that is (D + 16) 2^-23 A per
// head. A head whose dot product is below zero by more than that adds exactly 0. Then H additions
// (2^-24 each), the fp32 divisor (2^-24), a division within 2 ulp (2^-22), and one ulp of the
// result.
#include "qsa/score.h"

#include <algorithm>

#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/qsa/groups.h"
#include "reference/qsa/score.h"

namespace reference {

namespace {
constexpr double kLargest = 0x1.fffffep127;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
}  // namespace

Scorer::Scorer(const toolkit::Args& a, int64_t columns, double divisor, int64_t compress_ratio)
    : q_(a.tensor("q")),
      k_(a.tensor("k_cache")),
      table_(a.tensor("page_table")),
      requests_(a.tensor("token_to_req")),
      positions_(a.tensor("query_positions")),
      lengths_(a.tensor("sequence_lengths")),
      columns_(columns),
      ratio_(compress_ratio),
      divisor_(divisor) {}

void Scorer::gather(int64_t request, int64_t visible) {
  if (request == request_) return;
  const int64_t pages = k_.size(0), page = k_.size(1), dim = k_.size(3);
  keys_.resize(visible, dim);
  live_.assign(size_t(visible), 0);
  for (int64_t c = 0; c < visible; ++c) {
    const int64_t id = c / page < table_.size(1) ? table_.integer(request, c / page) : -1;
    if (id < 0 || id >= pages) {
      keys_.row(c).setZero();
      continue;
    }
    live_[size_t(c)] = 1;
    k_.row(keys_.row(c).data(), id, c % page, 0);
  }
  request_ = request;
}

RowScores Scorer::row(int64_t i) {
  RowScores out;
  out.value.assign(size_t(columns_), -kInfinity);
  out.bound.assign(size_t(columns_), 0.0);
  const int64_t r = requests_.integer(i);
  const int64_t length = r >= 0 && r < table_.size(0) ? lengths_.integer(r) : 0;
  out.visible = visible_groups(positions_.integer(i), length, ratio_);
  const int64_t visible = std::min(out.visible, columns_);
  if (visible == 0) return out;
  gather(r, std::min(length / ratio_, columns_));

  const int64_t heads = q_.size(1), dim = q_.size(2);
  Matrix q(heads, dim);
  for (int64_t h = 0; h < heads; ++h) q_.row(q.row(h).data(), i, h);
  const auto keys = keys_.topRows(visible);
  const Matrix dots = keys * q.transpose();
  const Matrix sums = keys.cwiseAbs() * q.cwiseAbs().transpose();
  const double per_dot = double(dim + 16) * 0x1p-23;
  for (int64_t c = 0; c < visible; ++c) {
    if (!live_[size_t(c)]) continue;
    double total = 0, error = 0;
    bool overflow = false;
    for (int64_t h = 0; h < heads; ++h) {
      const double dot = dots(c, h);
      if (std::isnan(dot)) continue;  // contributes 0 (fmax rule)
      if (std::isinf(dot)) {          // an inf of the input; the finite terms cannot turn it
        if (dot > 0) total = kInfinity;
        continue;
      }
      const double e = per_dot * sums(c, h) + double(dim) * 0x1p-149;
      overflow |= sums(c, h) > kLargest;
      total += std::max(0.0, dot);
      if (dot + e > 0) error += e;
    }
    const double score = total / divisor_;
    double bound =
        rounded_bound(TK_F32, score, error / divisor_ + double(heads + 6) * 0x1p-24 * score);
    if (std::isinf(total)) bound = 0;
    if (overflow ||
        (std::isfinite(total) && (total > kLargest || score > kLargest * (1 - 0x1p-20)))) {
      bound = kInfinity;
      out.overflow = true;
    }
    out.value[size_t(c)] = score;
    out.bound[size_t(c)] = bound;
  }
  return out;
}

namespace {

// Rows that one Scorer takes, so that those of a request share what it has gathered.
constexpr int64_t kRowsAtOnce = 64;

Result score(const toolkit::Args& a) {
  const int64_t rows = a.tensor("q").size(0), columns = ::qsa::score::columns(a);
  Output logits, visible;
  logits.dtype = TK_F32;
  logits.shape = {rows, columns};
  logits.value.resize(size_t(rows * columns));
  logits.bound.resize(size_t(rows * columns));
  visible.dtype = TK_I32;
  visible.shape = {rows};
  visible.integer.resize(size_t(rows));
  std::vector<uint8_t> overflows(size_t(rows), 0);
  for_each_row((rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](int64_t part) {
    Scorer scorer(a, columns, ::qsa::score::divisor(a), a.integer("compress_ratio"));
    for (int64_t i = part * kRowsAtOnce; i < std::min(rows, (part + 1) * kRowsAtOnce); ++i) {
      const RowScores s = scorer.row(i);
      visible.integer[size_t(i)] = s.visible;
      overflows[size_t(i)] = s.overflow;
      std::copy(s.value.begin(), s.value.end(), logits.value.begin() + i * columns);
      std::copy(s.bound.begin(), s.bound.end(), logits.bound.begin() + i * columns);
    }
  });
  Result result;
  for (int64_t i = 0; i < rows; ++i) {
    if (!overflows[size_t(i)]) continue;
    logits.judged.resize(size_t(rows * columns), 1);
    for (int64_t c = i * columns; c < (i + 1) * columns; ++c)
      if (std::isinf(logits.bound[size_t(c)])) logits.judged[size_t(c)] = 0;
    result.findings.push_back(
        "row " + std::to_string(i) +
        ": products of query and keys are beyond fp32; those columns are not judged");
  }
  result.outputs.emplace("logits", std::move(logits));
  result.outputs.emplace("visible_blocks", std::move(visible));
  return result;
}

const Registration registered("qsa.score", score);

}  // namespace
}  // namespace reference
