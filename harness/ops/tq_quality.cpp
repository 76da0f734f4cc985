// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/tq_quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "harness/generate/fill.h"
#include "harness/generate/random.h"
#include "harness/ops/tq_cards.h"
#include "harness/ops/tq_encode_judge.h"

namespace harness {

namespace {

constexpr int64_t kFewest = 256, kMost = 4096;  // vectors

// Of 4000 normal vectors: what keys lose without and with norm correction, what values lose (0: not known).
struct Known {
  int64_t dim;
  double key_raw[3], key_corrected[3], value[2];  // keys of 3, 4, 8 bits; values of 3, 4 bits
};
constexpr Known kKnown[] = {
    {64, {.0333, .0092, .00070}, {.0327, .0089, .00070}, {.0369, .0081}},
    {128, {.0341, .0093, .00071}, {.0339, .0092, .00071}, {.0459, .0100}},
    {256, {.0342, .0094, .00070}, {.0343, .0094, .00070}, {.0545, .0119}},
};

std::string known(double loss) { return loss > 0 ? fmt::format(" (known: {:.2g})", loss) : ""; }

// The tokens whose slots nobody else wants, each a block of a cache of its own.
struct Written {
  std::vector<int64_t> tokens;
  Case decode;  // tq.dequant
};
Written written(const Case& c, const Tensor& cache) {
  const int64_t heads = c.inputs.at("key").shape[1], bytes = cache.shape[3];
  Written w;
  std::vector<int64_t> slots;
  for (const auto& [slot, tokens] : wanted_slots(c)) {
    if (tokens.size() != 1 || int64_t(slots.size()) * heads >= kMost) continue;
    slots.push_back(slot);
    w.tokens.push_back(tokens[0]);
  }
  const int64_t n = int64_t(slots.size());
  Tensor own = make_tensor(TK_U8, {n, 1, heads, bytes});
  for (int64_t i = 0; i < n * heads * bytes; ++i)
    *own.element(i) = *cache.element(slots[size_t(i / (heads * bytes))] * heads * bytes + i % (heads * bytes));
  std::vector<int64_t> table(slots.size());
  std::iota(table.begin(), table.end(), 0);
  w.decode.op = "tq.dequant";
  w.decode.scalars = c.scalars;
  w.decode.scalars["head_dim"] = std::to_string(last_dim(c, "key"));
  w.decode.inputs["kv_cache"] = own;
  w.decode.inputs["block_table"] = from_integers(TK_I32, table, {1, n});
  if (const auto it = c.inputs.find("centroids"); it != c.inputs.end()) w.decode.inputs["centroids"] = it->second;
  return w;
}

struct Sums {
  double error = 0, size = 0;
  double loss() const { return error / size; }
};

}  // namespace

std::string encode_quality(const Case& c, const Tensor& cache) {
  const Tensor &key = c.inputs.at("key"), &value = c.inputs.at("value");
  const int64_t heads = key.shape[1], dim = key.shape[2];
  if (key.shape[0] * heads < kFewest) return "";
  const Written w = written(c, cache);
  const int64_t n = int64_t(w.tokens.size());
  if (n * heads < kFewest) return "";
  const TensorMap back = oracle_outputs(w.decode);
  const bool rotated = !flag_of(c, "key_fp8");
  std::vector<double> pi;
  if (rotated)
    for (int64_t i = 0; i < dim * dim; ++i) pi.push_back(c.inputs.at("Pi").real(i));

  Tensor queries = make_tensor(TK_F32, {n * heads, dim});
  fill_normal(queries, Random(1, "quality").stream("query"), 1);
  Sums keys, values;
  double cosine = 0, score = 0;
  std::vector<double> x(size_t(dim), 0), y(size_t(dim), 0);
  for (int64_t v = 0; v < n * heads; ++v) {
    const int64_t token = v / heads, head = v % heads;
    const int64_t from = (w.tokens[size_t(token)] * heads + head) * dim, to = (head * n + token) * dim;
    for (int64_t d = 0; d < dim; ++d) x[size_t(d)] = key.real(from + d);
    for (int64_t i = 0; i < dim; ++i) {
      y[size_t(i)] = rotated ? 0 : x[size_t(i)];
      for (int64_t j = 0; rotated && j < dim; ++j) y[size_t(i)] += pi[size_t(i * dim + j)] * x[size_t(j)];
    }
    double dot = 0, size = 0, size_back = 0, off = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double k = back.at("k").real(to + d), exact = y[size_t(d)];
      dot += k * exact;
      size += exact * exact;
      size_back += k * k;
      keys.error += (k - exact) * (k - exact);
      off += queries.real(v * dim + d) * (k - exact);
      const double value_back = back.at("v").real(to + d), value_exact = value.real(from + d);
      values.error += (value_back - value_exact) * (value_back - value_exact);
      values.size += value_exact * value_exact;
    }
    keys.size += size;
    cosine += dot / std::sqrt(size * size_back);
    score += off * off / double(dim);
  }
  const double count = double(n * heads);
  if (!std::isfinite(keys.loss() + values.loss() + cosine)) return "";  // vectors that hold NaN, inf or nothing

  double known_key = 0, known_value = 0;
  for (const Known& k : kKnown) {
    if (k.dim != dim) continue;
    const int key_at = !rotated ? 2 : c.scalars.at("mse_bits") == "3" ? 0 : 1;
    known_key = flag_of(c, "norm_correction") ? k.key_corrected[key_at] : k.key_raw[key_at];
    known_value = k.value[c.scalars.at("value_quant_bits") == "3" ? 0 : 1];
  }
  return fmt::format(
      "{} vectors: keys lose {:.3g} of their square{}, cosine {:.4f}, scores off by {:.3f}; values lose {:.3g}{}", n * heads,
      keys.loss(), known(known_key), cosine / count, std::sqrt(score / count), values.loss(), known(known_value));
}

}  // namespace harness
