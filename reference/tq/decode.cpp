// SPDX-License-Identifier: Apache-2.0
// tq.decode: softmax attention of one query row per sequence over a TurboQuant cache, written straight from the
// contract. The bounds follow a fp32 kernel step by step: rotation, dot product, softmax, weighted sum, output rounding.
#include "tq/decode.h"

#include <Eigen/Dense>

#include "reference/parallel.h"
#include "reference/tq/cache.h"
#include "reference/tq/error.h"

namespace reference::tq {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The live tokens of one sequence and KV head, taken out of the cache.
struct Tokens {
  std::vector<int64_t> token;
  Rows key;                   // without norm
  Eigen::VectorXd gain;       // norm / centroid norm: score = gain * (q . key) * scale
  Rows value, value_size;     // and |code * scale| + |zero|, which a kernel may sum apart
  Eigen::VectorXd step;       // |scale|: from a value code to the next
  bool finite_values = true;
  int64_t count() const { return int64_t(token.size()); }
};

Tokens live_tokens(const toolkit::Args& a, const Cache& cache, int64_t b, int64_t kv_head) {
  const Reader table(a.tensor("block_table")), lens(a.tensor("seq_lens"));
  const int64_t listed = std::min(lens.integer(b), table.size(1) * cache.page());
  Tokens t;
  for (int64_t n = 0; n < listed; ++n) {
    const int64_t block = table.integer(b, n / cache.page());
    if (block >= 0 && block < cache.blocks()) t.token.push_back(n);
  }
  const int64_t dim = cache.layout.head_dim;
  t.key.resize(t.count(), dim);
  t.value.resize(t.count(), dim);
  t.value_size.resize(t.count(), dim);
  t.gain.resize(t.count());
  t.step.resize(t.count());
  for (int64_t i = 0; i < t.count(); ++i) {
    const int64_t n = t.token[i];
    const Slot slot = cache.slot(table.integer(b, n / cache.page()), n % cache.page(), kv_head);
    t.gain[i] = cache.norm(slot) / cache.centroid_norm(slot);
    const double value_scale = cache.value_scale(slot), zero = cache.value_zero(slot);
    t.step[i] = std::fabs(value_scale);
    for (int64_t d = 0; d < dim; ++d) {
      const double step = cache.value_code(slot, d) * value_scale;
      t.key(i, d) = cache.key(slot, d);
      t.value(i, d) = step + zero;
      t.value_size(i, d) = std::fabs(step) + std::fabs(zero);
    }
  }
  t.finite_values = t.value.allFinite();
  return t;
}

// A query as the scores see it: rotated for centroid keys, with the error that an fp32 rotation may have.
struct Query {
  Eigen::VectorXd value, error;
};

struct Head {
  int64_t batch, head, index;
  std::string name() const { return "batch " + std::to_string(batch) + ", head " + std::to_string(head); }
};

struct Bounds {
  double dot, weighted_sum;  // relative to the sums of magnitudes
  double code;               // of a value code, relative to its step
};

void leave_out(Output& out, int64_t first, int64_t count) { std::fill_n(out.judged.begin() + first, count, uint8_t{0}); }

void attend(const Head& at, const Query& q, const Tokens& tokens, const Cache& cache, double scale, Bounds relative,
            Output& output, Output& lse, Findings& findings) {
  const int64_t dim = cache.layout.head_dim, n = tokens.count();
  Eigen::VectorXd dot = tokens.key * q.value;
  const Eigen::VectorXd size = tokens.key.cwiseAbs() * q.value.cwiseAbs();
  // Errors of different elements of the rotated query are independent: they add up as squares.
  const Eigen::VectorXd shift = (tokens.key.cwiseAbs2() * q.error.cwiseAbs2()).cwiseSqrt();
  // Scores and how far a fp32 kernel's may be: rotation and dot product, then norm correction and the two factors.
  std::vector<double> score(size_t(n), 0.0), error(size_t(n), 0.0), weight, finite;
  double top = -kInf;
  const double correction = cache.norm_correction ? relative.dot / 2 + 2 * kApproximate * kUnit : 0;
  for (int64_t i = 0; i < n; ++i) {
    const double factor = tokens.gain[i] * scale;
    score[i] = tokens.gain[i] * dot[i] * scale;
    error[i] = std::fabs(factor) * ((relative.dot + kApproximate * kUnit) * size[i] + shift[i]) +
               (correction + kApproximate * kUnit) * std::fabs(score[i]);
    const bool overflows = std::isfinite(score[i]) && !((std::fabs(factor) + 1) * size[i] + error[i] < kFp32Largest);
    if (std::isnan(score[i]) || score[i] == kInf || overflows) {
      findings.add(at.name() + ", token " + std::to_string(tokens.token[i]) +
                   ": the score is NaN, +inf or beyond fp32; not judged");
      leave_out(output, at.index * dim, dim);
      leave_out(lse, at.index, 1);
      return;
    }
    top = std::max(top, score[i]);
    if (score[i] != -kInf) finite.push_back(score[i]);
  }
  if (top == -kInf) {  // nothing live, or every norm an infinite no: output 0
    lse.value[at.index] = -kInf;
    return;
  }
  const double chain = accumulation(rescales(finite), dim * output.shape[0] * output.shape[1]) * (1 + kApproximate);
  Eigen::VectorXd share(n), moved(n);
  double sum = 0, low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double w = std::exp(score[i] - top);
    share[i] = w;
    moved[i] = 0;
    if (w == 0) continue;
    const double e = error[i] + chain + kUnit * (kApproximate * (std::fabs(score[i]) + std::fabs(top)) + 2 * kApproximate);
    moved[i] = w * std::expm1(e);
    sum += w;
    low += w * std::exp(-e);
    high += w * std::exp(e);
  }
  const double adding = relative.weighted_sum + 4 * kApproximate * kUnit;
  place(lse, at.index, top + std::log(sum),
        std::max(std::log(high / sum), std::log(sum / low)) + adding +
            2 * kApproximate * kUnit * (std::fabs(top) + std::fabs(std::log(sum))));
  if (!tokens.finite_values) {
    findings.add(at.name() + ": a value of a live token is NaN or inf; its output is not judged");
    leave_out(output, at.index * dim, dim);
    return;
  }
  const Eigen::VectorXd mean = tokens.value.transpose() * share / sum;
  const Eigen::VectorXd mean_size = tokens.value_size.transpose() * share / low;
  const Eigen::VectorXd moves =
      (tokens.value.rowwise() - mean.transpose()).cwiseAbs().transpose() * moved / low;
  const double of_codes = relative.code * tokens.step.dot(share) / low;
  for (int64_t d = 0; d < dim; ++d)
    place(output, at.index * dim + d, mean[d],
          moves[d] + of_codes + adding * (mean_size[d] + std::fabs(mean[d]) * sum / low));
}

// Tokens whose weighted values a kernel may add up one after the other on tensor cores before it merges parts. More would
// make what they cut, n 2^-23, larger than a quarter of the rounding of an f16 output, 2^-11, and hide faults behind it.
constexpr int64_t kChain = int64_t{1} << (23 - 13);

void decode_all(const toolkit::Args& a, Output& output, Output& lse, Findings findings) {
  const Reader query(a.tensor("query"));
  const int64_t batch = query.size(0), heads = query.size(1), dim = query.size(2);
  const Cache cache(a, dim);
  const double scale = double(float(a.real("scale")));
  Rows rotation = Rows::Identity(dim, dim);
  if (!cache.layout.key_fp8) {
    const Reader pi(a.tensor("Pi"));
    for (int64_t i = 0; i < dim; ++i)
      for (int64_t j = 0; j < dim; ++j) rotation(i, j) = pi.real(i, j);
  }
  const double rotated = accumulation(dim, batch * heads * dim);
  const int64_t group = heads / cache.heads();
  std::vector<std::vector<std::string>> found(size_t(batch * cache.heads()));
  for_each_row(batch * cache.heads(), [&](int64_t part) {
    const int64_t b = part / cache.heads(), kv_head = part % cache.heads();
    const Tokens tokens = live_tokens(a, cache, b, kv_head);
    const Bounds relative{on_tensor_cores(dim),
                          std::max(accumulation(tokens.count(), batch * heads * dim),
                                   on_tensor_cores(std::min(tokens.count(), kChain))),
                          a.tensor("query").dtype() == TK_F32 ? 0 : kDenormalCode};
    Findings of_part(found[size_t(part)], std::numeric_limits<int64_t>::max());
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      Query q{Eigen::VectorXd(dim), Eigen::VectorXd::Zero(dim)};
      query.row(q.value.data(), b, h);
      if (!cache.layout.key_fp8) {
        q.error = rotated * (rotation.cwiseAbs() * q.value.cwiseAbs());
        q.value = (rotation * q.value).eval();
      }
      attend({b, h, b * heads + h}, q, tokens, cache, scale, relative, output, lse, of_part);
    }
  });
  for (const auto& of_part : found)
    for (const auto& text : of_part) findings.add(text);
}

Result oracle(const toolkit::Args& a) {
  const toolkit::TensorView query = a.tensor("query");
  Result result;
  Output output = real_output(query.dtype(), query.shape());
  Output lse = real_output(TK_F32, {query.size(0), query.size(1)});
  decode_all(a, output, lse, Findings(result.findings));
  result.outputs.emplace("output", std::move(output));
  result.outputs.emplace("lse", std::move(lse));
  return result;
}

const Registration registration("tq.decode", oracle);

}  // namespace
}  // namespace reference::tq
