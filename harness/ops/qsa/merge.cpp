// SPDX-License-Identifier: Apache-2.0
// Card of qsa.merge.
#include "qsa/merge.h"

#include <cmath>

#include "harness/ops/qsa_rows.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"rows", "3", "rows"},
    {"heads", "6", "query heads"},
    {"dim", "128", "elements of a head"},
    {"splits", "8", "partial results"},
    {"spread", "3", "standard deviation of the partial lse, base 2"},
    {"dead", "0",
     "every n-th split of a head is empty (lse -inf, partial garbage); 0: none, 1: all"},
    {"dtype", "bf16", "output: bf16, f16 or f32"},
    {"broken", "none", "none, nan or inf: one partial lse per row"},
};

class MergeCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::merge::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"eight", ""},
        {"one-split", "splits=1"},
        {"sixty-four", "splits=64 rows=1 heads=4 dim=64"},
        {"thirty-three", "splits=33 rows=1"},
        {"dead-splits", "splits=7 dead=2"},
        {"all-dead", "splits=4 dead=1"},
        {"far-apart", "spread=60 splits=16"},
        {"equal-weights", "spread=0 splits=5"},
        {"f16", "dtype=f16"},
        {"f32", "dtype=f32 dim=40"},
        {"tp1", "heads=24 dim=256 rows=2 splits=4"},
        {"nan-lse", "broken=nan"},
        {"inf-lse", "broken=inf"},
        {"no-rows", "rows=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.merge");
    const int64_t rows = axes.integer("rows"), heads = axes.integer("heads", 1),
                  dim = axes.integer("dim", 1), splits = axes.integer("splits", 1),
                  dead = axes.integer("dead");
    const std::string broken = axes.word("broken", {"none", "nan", "inf"});
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "splits=" + std::to_string(splits) + " R=" + std::to_string(rows) +
              " Hq=" + std::to_string(heads) + " D=" + std::to_string(dim);
    Tensor output = make_tensor(TK_F32, {splits, rows, heads, dim}),
           lse = make_tensor(TK_F32, {splits, rows, heads});
    fill_normal(output, random.stream("output"));
    fill_normal(lse, random.stream("lse"), axes.number("spread", 0, 1e4), 5);
    for (int64_t i = 0; i < lse.count(); ++i) {
      const int64_t split = i / (rows * heads), head = i % heads;
      if (dead == 0 || (split + head) % dead != 0) continue;
      lse.set_real(i, -INFINITY);
      for (int64_t d = 0; d < dim; ++d) output.set_real(i * dim + d, d % 2 ? NAN : INFINITY);
    }
    if (broken != "none")
      for (int64_t r = 0; r < rows; ++r)
        lse.set_real(((r % splits) * rows + r) * heads + r % heads,
                     broken == "nan" ? NAN : INFINITY);
    c.inputs["partial_output"] = output;
    c.inputs["partial_lse"] = lse;
    c.scalars["output_dtype"] = std::string(toolkit::name_of(axes.dtype("dtype", toolkit::kFloat)));
    return c;
  }

  // A dump's own result says the output dtype.
  void complete(Case& c) const override {
    if (c.scalars.contains("output_dtype")) return;
    for (const TensorMap* results : {&c.actual, &c.expected})
      if (const auto it = results->find("output"); it != results->end()) {
        c.scalars["output_dtype"] = std::string(toolkit::name_of(it->second.dtype));
        return;
      }
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const Shape& s = c.inputs.at("partial_output").shape;
    return "row " + std::to_string(linear / (s[2] * s[3])) + ", head " +
           std::to_string(linear / s[3] % s[2]) + ", dim " + std::to_string(linear % s[3]);
  }

  Cost cost(const Case& c) const override {
    const Tensor& lse = c.inputs.at("partial_lse");
    const double dim = double(c.inputs.at("partial_output").shape[3]);
    double live = 0;
    for (int64_t i = 0; i < lse.count(); ++i)
      live += lse.real(i) > -INFINITY || std::isnan(lse.real(i));
    const auto it = c.scalars.find("output_dtype");
    const int bytes =
        toolkit::bytes_of(toolkit::dtype_named(it == c.scalars.end() ? "bf16" : it->second));
    const double outputs = double(lse.count()) / double(lse.shape[0]) * dim;
    return {4.0 * (live * dim + double(lse.count())) + outputs * bytes, 2 * live * dim};
  }

  std::vector<Fault> faults() const override {
    return {
        {"split-lost", "one live split is left out",
         [](const Case& c, TensorMap& out) {
           // The split of one head with the largest weight, so that the loss shows.
           const Tensor& lse = c.inputs.at("partial_lse");
           const int64_t heads = lse.shape[1] * lse.shape[2];
           for (int64_t h = 0; h < heads; ++h) {
             int64_t best = -1, live = 0;
             for (int64_t s = 0; s < lse.shape[0]; ++s) {
               const double l = lse.real(s * heads + h);
               if (std::isnan(l) || l == INFINITY) {  // this head is NaN either way
                 live = 0;
                 break;
               }
               if (l == -INFINITY) continue;
               ++live;
               if (best < 0 || lse.real(s * heads + h) > lse.real(best * heads + h)) best = s;
             }
             if (live < 2) continue;
             Case changed = c;
             Tensor t = lse.packed();
             t.set_real(best * heads + h, -INFINITY);
             replace(changed, "partial_lse", t);
             plant_result_of(changed, out);
             return true;
           }
           return false;
         }},
        {"natural-base", "weights of base e",
         [](const Case& c, TensorMap& out) {
           return with_lse(c, out, [](double l) { return l * 1.4426950408889634; });
         }},
        {"plain-mean", "all live splits weigh the same",
         [](const Case& c, TensorMap& out) {
           return with_lse(c, out, [](double) { return 0.0; });
         }},
        {"one-nan", "one element is NaN",
         [](const Case& c, TensorMap& out) { return finite(c) && plant_nan(out.at("output")); }},
    };
  }

 private:
  static bool finite(const Case& c) {
    const Tensor& lse = c.inputs.at("partial_lse");
    for (int64_t i = 0; i < lse.count(); ++i)
      if (std::isnan(lse.real(i)) || lse.real(i) == INFINITY) return false;
    return true;
  }
  // The result for other lse; false where the weights stay as they are.
  static bool with_lse(const Case& c, TensorMap& out, double (*change)(double)) {
    const Tensor& lse = c.inputs.at("partial_lse");
    const int64_t heads = lse.shape[1] * lse.shape[2];
    Tensor t = lse.packed();
    bool differs = false;
    for (int64_t i = 0; i < lse.count(); ++i)
      if (std::isfinite(lse.real(i))) {
        t.set_real(i, change(lse.real(i)));
        for (int64_t s = 0; s < i / heads; ++s) {
          const double other = lse.real(s * heads + i % heads);
          differs |= std::isfinite(other) && std::fabs(other - lse.real(i)) > 0.5 &&
                     std::fabs(other - lse.real(i)) < 8;
        }
      }
    if (!differs) return false;
    Case changed = c;
    replace(changed, "partial_lse", t);
    plant_result_of(changed, out);
    return true;
  }
};

HARNESS_CARD(MergeCard)

}  // namespace
}  // namespace harness
