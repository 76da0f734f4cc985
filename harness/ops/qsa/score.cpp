// SPDX-License-Identifier: Apache-2.0
// Card of qsa.score.
#include "qsa/score.h"

#include <cmath>

#include "harness/ops/qsa_index.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {{"columns", "-1", "columns of logits, -1: all that the table holds"}};
constexpr auto kAxes = with_index(kOwn);

int64_t columns_of(const Case& c) {
  if (c.scalars.contains("num_columns")) return scalar_integer(c, "num_columns");
  return c.inputs.at("page_table").shape[1] * c.inputs.at("k_cache").shape[1];
}
double divisor_of(const Case& c) {
  const auto it = c.scalars.find("score_scale");
  return it == c.scalars.end() ? std::sqrt(double(c.inputs.at("q").shape[2]))
                               : std::stod(it->second);
}

class ScoreCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::score::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode", "ctx=200"},
        {"speculative-page-196",
         "batch=speculative requests=2 rows=4 ctx=1000 page=196 dim=32 padding=2"},
        {"prefill", "batch=prefill requests=1 rows=40 dim=64"},
        {"chunked", "batch=chunked requests=1 rows=12 ctx=190 dim=64"},
        {"page-392-400", "ctx=2400 requests=1 page=400 dim=16 heads=2"},
        {"mixed-strided", "batch=mixed requests=3 rows=9 ctx=150 dim=64 strided=1 layout=padded"},
        {"halves", "ctx=150 layout=halves dim=64"},
        {"f16", "dtype=f16 ctx=150 requests=2"},
        {"f32", "dtype=f32 ctx=150 requests=2 dim=64"},
        {"odd-dim-ratio-3",
         "dim=72 heads=3 ratio=3 page=5 ctx=90 batch=speculative rows=2 requests=2"},
        {"one-head-ratio-1-i64", "heads=1 ratio=1 dim=64 index=i64 ctx=30 requests=2"},
        {"given-divisor-and-columns", "divisor=3.5 columns=19 ctx=120 requests=2"},
        {"columns-beyond-table", "columns=45 ctx=128 requests=1 batch=speculative"},
        {"huge-unused-pages", "unused=2147483647 ctx=150 width=20 dim=64"},
        {"nothing-visible", "ctx=3 ratio=4 requests=3"},
        {"zero-ties", "values=zero-ties dim=16 ctx=300 requests=2"},
        {"all-below-zero", "values=no-score dim=16 ctx=100 requests=1"},
        {"dead-pages", "hostile=pages ctx=300 dim=32"},
        {"nan-keys", "hostile=nan-keys ctx=150 dim=32 requests=2"},
        {"hostile", "hostile=all batch=speculative rows=3 requests=3 ctx=200 dim=64 padding=2"},
        // Tiles of four, sixteen and 64 rows with requests that change inside a tile.
        {"speculative-4x128",
         "hostile=all batch=speculative requests=3 rows=3 ctx=300 dim=128 padding=2 index=i64"},
        {"mixed-4x128", "batch=mixed requests=3 rows=33 ctx=500 columns=130 hostile=requests"},
        {"chunk-of-130-rows", "batch=chunked requests=1 rows=130 ctx=2100 dim=64 hostile=pages"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    Case c;
    c.op = op();
    c.seed = seed;
    make_index_inputs(c, axes, Random(seed, "qsa.score"));
    if (const int64_t columns = axes.integer("columns", -1); columns >= 0)
      c.scalars["num_columns"] = std::to_string(columns);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    if (c.inputs.at("q").shape[0] > 0) note_index_inputs(out, c, columns_of(c));
    return out;
  }

  // A kernel may leave a negative visible_blocks, as the originals do: it means 0.
  Verdict judge(const Case& c, const reference::Result& oracle,
                const TensorMap& actual) const override {
    TensorMap clamped = actual;
    if (const auto it = clamped.find("visible_blocks"); it != clamped.end()) {
      it->second = it->second.packed();
      for (int64_t i = 0; i < it->second.count(); ++i)
        if (it->second.integer(i) < 0) it->second.set_integer(i, 0);
    }
    return Card::judge(c, oracle, clamped);
  }

  std::vector<std::string_view> row_inputs() const override {
    return {"q", "token_to_req", "query_positions"};
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    if (output == "visible_blocks") {
      const RowView r = row_views(c)[size_t(linear)];
      return "row " + std::to_string(linear) + " (request " + std::to_string(r.request) +
             ", position " + std::to_string(r.position) + ", length " + std::to_string(r.length) +
             ")";
    }
    return index_place(c, linear / columns_of(c), linear % columns_of(c));
  }

  Cost cost(const Case& c) const override {
    Cost cost = index_cost(c, columns_of(c));
    cost.bytes += 4.0 * double(c.inputs.at("q").shape[0]) * double(columns_of(c) + 1);
    return cost;
  }

  std::vector<Fault> faults() const override {
    return {
        {"last-visible-column-lost", "the last finite score of a row becomes -inf",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("logits");
           for (int64_t i = t.count() - 1; i >= 0; --i)
             if (std::isfinite(t.real(i))) {
               t.set_real(i, -INFINITY);
               return true;
             }
           return false;
         }},
        {"scaled-by-1.001", "all scores times 1.001",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("logits");
           bool any = false;
           for (int64_t i = 0; i < t.count(); ++i)
             if (const double v = t.real(i); std::isfinite(v) && v != 0) {
               t.set_real(i, v * 1.001);
               any = true;
             }
           return any;
         }},
        {"no-relu", "negative dot products count", plant_no_relu},
        {"columns-swapped", "two neighbouring columns change places",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("logits");
           for (int64_t i = 0; i + 1 < t.count(); ++i) {
             const double a = t.real(i), b = t.real(i + 1);
             if ((i + 1) % t.shape[1] == 0 || !std::isfinite(a) || !std::isfinite(b)) continue;
             if (std::fabs(a - b) <= 0.05 * (a + b)) continue;
             t.set_real(i, b);
             t.set_real(i + 1, a);
             return true;
           }
           return false;
         }},
        {"one-nan", "one score is NaN",
         [](const Case&, TensorMap& out) { return plant_nan(out.at("logits")); }},
        {"visible-off-by-one", "visible_blocks one too high",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("visible_blocks");
           if (t.count() == 0) return false;
           t.set_integer(t.count() - 1, std::max<int64_t>(t.integer(t.count() - 1), 0) + 1);
           return true;
         }},
    };
  }

 private:
  static bool plant_no_relu(const Case& c, TensorMap& out) {
    Tensor& t = out.at("logits");
    const Tensor& q = c.inputs.at("q");
    const Tensor& k = c.inputs.at("k_cache");
    const std::vector<RowView> rows = row_views(c);
    const int64_t heads = q.shape[1], dim = q.shape[2], columns = t.shape[1];
    bool any = false;
    for (size_t i = 0; i < rows.size(); ++i)
      for (int64_t col = 0; col < std::min(rows[i].visible, columns); ++col) {
        const int64_t page =
            page_of(c.inputs.at("page_table"), rows[i].request, col, k.shape[1], k.shape[0]);
        if (page < 0) continue;
        double sum = 0;
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < dim; ++d)
            sum += q.real((int64_t(i) * heads + h) * dim + d) *
                   k.real((page * k.shape[1] + col % k.shape[1]) * dim + d);
        const int64_t at = int64_t(i) * columns + col;
        if (!std::isfinite(sum) || std::fabs(sum / divisor_of(c) - t.real(at)) <= 1e-2) continue;
        t.set_real(at, sum / divisor_of(c));
        any = true;
      }
    return any;
  }
};

HARNESS_CARD(ScoreCard)

}  // namespace
}  // namespace harness
