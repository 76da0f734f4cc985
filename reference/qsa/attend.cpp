// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.attend.
//
// The bound, for one row and head with live tokens t, weights p_t, values v_t and true output o
// (per dimension):
// - The scaled score: D products in fp32, on tensor cores an ulp (2^-23) per addend, (D+16) 2^-23
// sum|q||k| scale, and
//   roundings of the scaling and of the distance to the maximum, 4 2^-24 (|s_t| + |s_max - s_t|).
// - exp2 within 2 ulp (2^-22), once per rescaling of a running softmax: n/16 + 8 of them. Together
// a weight is off by a
//   factor within exp(+-eta_t), so the output by sum p_t (exp(eta_t)-1) |v_t - o| / sum p_t
//   exp(-eta_t), and never by more than the farthest value.
// - Weights rounded to q's dtype before they meet the values (the original does): relative u each.
// In the worst case
//   that is u sum p_t (|v_t| + |o|). Roundings of different weights are independent, those of
//   weights in one cell of the dtype are not: with W the sum over a cell, 3 u sqrt(sum W^2) is more
//   than seven standard deviations (a rounding error has an RMS of 0.42 u), and the smaller of the
//   two counts. f16 adds 2^-25 of the largest weight each.
// - fp32 accumulation of n terms, (n + 16) 2^-23 (sum p|v| + |o|); the division, 2^-22 |o|.
// - Rounding of the output and one ulp beside it: rounded_bound().
#include "qsa/attend.h"

#include <Eigen/Core>
#include <numeric>

#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/reader.h"

namespace reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::ArrayXd;
constexpr double kLargest = 0x1.fffffep127;

struct Head {
  Vector output, bound;
  double lse = -std::numeric_limits<double>::infinity(), lse_bound = 0;
  bool judged = true;
};

// `scores` and `sums` are natural scaled scores and their sums of magnitudes; one row of `values` a
// live token.
Head attend_head(const Vector& scores, const Vector& sums, const Matrix& values, int64_t head_dim,
                 tk_dtype dtype) {
  const Eigen::Index n = values.rows(), dim = values.cols();
  const double top = scores.maxCoeff(), u = roundoff(dtype);
  const Vector weights = (scores - top).exp();
  const double z = weights.sum();
  const Vector p = weights / z;

  Head h;
  h.output = (values.transpose() * p.matrix()).array();
  const Vector eta = double(head_dim + 16) * 0x1p-23 * sums +
                     0x1p-22 * (scores.abs() + (top - scores)) + double(n / 16 + 8) * 0x1p-22;
  const double shrunk = (p * (-eta).exp()).sum();
  Vector by_weight = Vector::Zero(dim), farthest = Vector::Zero(dim), magnitude = Vector::Zero(dim),
         worst = Vector::Zero(dim), squares = Vector::Zero(dim), cell = Vector::Zero(dim),
         all = Vector::Zero(dim);
  Vector v(dim), distance(dim), term(dim);

  // By falling weight, so that the tokens of one rounding cell are neighbours.
  std::vector<Eigen::Index> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
  double cell_weight = -1;
  for (const Eigen::Index t : order) {
    v = values.row(t).transpose().array();
    distance = (v - h.output).abs();
    term = p[t] * (v.abs() + h.output.abs());
    by_weight += p[t] * std::expm1(eta[t]) * distance;
    farthest = farthest.max(distance);
    magnitude += p[t] * v.abs();
    all += v.abs() + h.output.abs();
    worst += term;
    const double rounded = round_to(dtype, weights[t]);
    if (rounded != cell_weight) {
      squares += cell.square();
      cell.setZero();
      cell_weight = rounded;
    }
    cell += term;
  }
  squares += cell.square();

  const Vector weight_error = (by_weight / shrunk).min(farthest);
  Vector rounding = u * worst.min(3 * squares.sqrt());
  if (dtype == TK_F16) rounding += 0x1p-25 / z * all;
  const Vector sums_error =
      double(n + 16) * 0x1p-23 * (magnitude + h.output.abs()) + 0x1p-22 * h.output.abs();
  h.bound = weight_error + rounding + sums_error;
  for (Eigen::Index d = 0; d < dim; ++d) h.bound[d] = rounded_bound(dtype, h.output[d], h.bound[d]);

  const double log2_e = 1.4426950408889634;
  h.lse = (top + std::log(z)) * log2_e;
  h.lse_bound = log2_e * (std::log((p * eta.exp()).sum()) + double(n + 16) * 0x1p-23) +
                4 * ulp(TK_F32, h.lse) + 0x1p-21;
  // Sums that leave fp32 on the way are nobody's fault but the input's.
  h.judged = (magnitude * z).maxCoeff() <= kLargest;
  return h;
}

class Attention {
 public:
  explicit Attention(const toolkit::Args& a)
      : q_(a.tensor("q")),
        k_(a.tensor("k_cache")),
        v_(a.tensor("v_cache")),
        tokens_(a.tensor("logical_indices")),
        table_(a.tensor("block_table")),
        requests_(a.tensor("token_to_req")) {
    output_.dtype = q_.view().dtype();
    output_.shape = q_.view().shape();
    const size_t heads = size_t(q_.size(0) * q_.size(1)), elements = heads * size_t(q_.size(2));
    output_.value.assign(elements, 0.0);
    output_.bound.assign(elements, 0.0);
    lse_.dtype = TK_F32;
    lse_.shape = {q_.size(0), q_.size(1)};
    lse_.value.assign(heads, -std::numeric_limits<double>::infinity());
    lse_.bound.assign(heads, 0.0);
  }

  Result run() {
    findings_.resize(size_t(q_.size(0)));
    output_.judged.assign(output_.value.size(), 1);
    lse_.judged.assign(lse_.value.size(), 1);
    for_each_row(q_.size(0), [&](int64_t i) { row(i); });
    Result result;
    for (auto& of_row : findings_)
      result.findings.insert(result.findings.end(), of_row.begin(), of_row.end());
    if (result.findings.empty()) {  // all are judged
      output_.judged.clear();
      lse_.judged.clear();
    }
    result.outputs.emplace("output", std::move(output_));
    result.outputs.emplace("lse", std::move(lse_));
    return result;
  }

 private:
  struct Place {
    int64_t token, page, slot;
  };
  std::vector<Place> live(int64_t i) const {
    std::vector<Place> places;
    const int64_t r = requests_.integer(i), page = k_.size(1);
    if (r < 0 || r >= table_.size(0)) return places;
    for (int64_t c = 0; c < tokens_.size(1); ++c) {
      const int64_t t = tokens_.integer(i, c);
      if (t < 0 || t / page >= table_.size(1)) continue;
      const int64_t id = table_.integer(r, t / page);
      if (id >= 0 && id < k_.size(0)) places.push_back({t, id, t % page});
    }
    return places;
  }

  void row(int64_t i) {
    const std::vector<Place> places = live(i);
    if (places.empty()) return;
    const int64_t n = int64_t(places.size()), dim = q_.size(2), kv_heads = k_.size(2),
                  group = q_.size(1) / kv_heads;
    const double scale = 1 / std::sqrt(double(dim));
    Matrix keys(n, dim), values(n, dim), q(group, dim);
    for (int64_t kv = 0; kv < kv_heads; ++kv) {
      for (int64_t t = 0; t < n; ++t) {
        k_.row(keys.row(t).data(), places[size_t(t)].page, places[size_t(t)].slot, kv);
        v_.row(values.row(t).data(), places[size_t(t)].page, places[size_t(t)].slot, kv);
      }
      for (int64_t g = 0; g < group; ++g) q_.row(q.row(g).data(), i, kv * group + g);
      const std::string bad = bad_token(places, keys, values, kv);
      const Matrix scores = q * keys.transpose(), sums = q.cwiseAbs() * keys.cwiseAbs().transpose();
      for (int64_t g = 0; g < group; ++g) {
        const int64_t head = kv * group + g;
        if (!bad.empty()) {
          skip(i, head, bad);
        } else if (!q.row(g).array().isFinite().all()) {
          skip(i, head, "the query holds a NaN or inf");
        } else if (sums.row(g).maxCoeff() > kLargest) {
          skip(i, head, "products of query and keys are beyond fp32");
        } else {
          const Head h =
              attend_head(scores.row(g).transpose().array() * scale,
                          sums.row(g).transpose().array() * scale, values, dim, output_.dtype);
          if (!h.judged) {
            skip(i, head, "the weighted sum of the values is beyond fp32");
            continue;
          }
          for (int64_t d = 0; d < dim; ++d) {
            output_.value[size_t((i * q_.size(1) + head) * dim + d)] = h.output[d];
            output_.bound[size_t((i * q_.size(1) + head) * dim + d)] = h.bound[d];
          }
          lse_.value[size_t(i * q_.size(1) + head)] = h.lse;
          lse_.bound[size_t(i * q_.size(1) + head)] = h.lse_bound;
        }
      }
    }
  }

  static std::string bad_token(const std::vector<Place>& places, const Matrix& keys,
                               const Matrix& values, int64_t kv) {
    for (const auto& [matrix, name] : {std::pair{&keys, "key"}, std::pair{&values, "value"}})
      for (Eigen::Index t = 0; t < matrix->rows(); ++t)
        for (Eigen::Index d = 0; d < matrix->cols(); ++d)
          if (!std::isfinite((*matrix)(t, d))) {
            const Place& p = places[size_t(t)];
            return std::string("the ") + name + " of token " + std::to_string(p.token) + " (page " +
                   std::to_string(p.page) + ", slot " + std::to_string(p.slot) + ", KV head " +
                   std::to_string(kv) + ", dim " + std::to_string(d) + ") is " +
                   (std::isnan((*matrix)(t, d)) ? "NaN" : "inf");
          }
    return {};
  }

  void skip(int64_t i, int64_t head, const std::string& why) {
    findings_[size_t(i)].push_back("row " + std::to_string(i) + ", head " + std::to_string(head) +
                                   ": " + why + "; not judged");
    const int64_t dim = q_.size(2), at = i * q_.size(1) + head;
    std::fill_n(output_.judged.begin() + at * dim, dim, uint8_t{0});
    lse_.judged[size_t(at)] = 0;
  }

  Reader q_, k_, v_, tokens_, table_, requests_;
  Output output_, lse_;
  std::vector<std::vector<std::string>> findings_;  // by row
};

const Registration registered("qsa.attend",
                              [](const toolkit::Args& a) { return Attention(a).run(); });

}  // namespace
}  // namespace reference
