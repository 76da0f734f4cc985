// SPDX-License-Identifier: Apache-2.0
// Card of tq.rotate.
#include "tq/rotate.h"

#include <cmath>

#include "harness/generate/turboquant.h"
#include "harness/ops/tq_cards.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"batch", "3", "sequences"},
    {"heads", "4", "query heads"},
    {"dim", "64", "head size"},
    {"dtype", "f16", "of the query: f16, bf16, f32"},
    {"rotation", "orthogonal", "Pi: hadamard, orthogonal, identity"},
    {"query_scale", "1", "standard deviation of query elements"},
    {"hostile", "none", "none, transposed (views with exchanged strides), nan (one query element)"},
};

class RotateCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return tq::rotate::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"orthogonal", ""},
        {"hadamard-d128", "dim=128 rotation=hadamard heads=8"},
        {"identity-d96", "dim=96 rotation=identity"},
        {"bf16-d80", "dim=80 dtype=bf16"},
        {"f32-d112", "dim=112 dtype=f32"},
        {"d256", "dim=256 batch=1 dtype=bf16"},
        {"odd-d72", "dim=72 heads=5"},
        {"odd-d300", "dim=300 batch=1 heads=9 dtype=f32"},
        {"one-row-d8", "batch=1 heads=1 dim=8"},
        {"large", "query_scale=1000 dtype=f32"},
        {"subnormal", "query_scale=0.00001"},
        {"views", "hostile=transposed"},
        {"nan", "hostile=nan"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, op());
    const int64_t batch = axes.integer("batch", 0), heads = axes.integer("heads", 1), dim = axes.integer("dim", 1, 4096);
    const std::string hostile = axes.word("hostile", {"none", "transposed", "nan"});
    const bool exchanged = hostile == "transposed";
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "B=" + std::to_string(batch) + " Hq=" + std::to_string(heads) + " D=" + std::to_string(dim);
    const tk_dtype dtype = axes.dtype("dtype", toolkit::kFloat);
    Tensor query = make_tensor(dtype, {batch, heads, dim});
    if (exchanged) query = view(make_tensor(dtype, {heads, batch, dim}), 0, query.shape, {dim, batch * dim, 1});
    fill_normal(query, random.stream("query"), axes.number("query_scale", 0, 1e30));
    if (hostile == "nan" && query.count() > 0) query.set_real(query.count() / 2, NAN);
    Tensor pi = tq_rotation(axes.word("rotation"), dim, random.stream("Pi"));
    if (exchanged) std::swap(pi.strides[0], pi.strides[1]);
    c.inputs["query"] = query;
    c.inputs["Pi"] = pi;
    return c;
  }

  void check_data(const Case& c) const override { check_rotation(c, contract()); }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const Shape& q = c.inputs.at("query").shape;
    return place_of(linear, {{"batch", q[0]}, {"head", q[1]}, {"dim", q[2]}});
  }

  Cost cost(const Case& c) const override {
    const Tensor& q = c.inputs.at("query");
    return {tensor_bytes(c, "query") + tensor_bytes(c, "Pi") + 4 * double(q.count()),
            2 * double(q.count()) * double(q.shape[2])};
  }

  std::vector<Fault> faults() const override {
    return {
        {"rotation-transposed", "multiplied by Pi instead of its transpose",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, transpose_rotation); }},
        {"last-dim-lost", "the last element of each query left out of the sums",
         [](const Case& c, TensorMap& o) {
           return plant_altered(c, o, [](Case& a) {
             Tensor q = a.inputs.at("query").packed();
             for (int64_t i = q.shape[2] - 1; i < q.count(); i += q.shape[2]) q.set_real(i, 0);
             a.inputs["query"] = q;
             return true;
           });
         }},
        {"low-precision", "Pi rounded to bf16",
         [](const Case& c, TensorMap& o) {
           return plant_altered(c, o, [](Case& a) {
             Tensor pi = a.inputs.at("Pi").packed(), rounded = make_tensor(TK_BF16, pi.shape);
             for (int64_t i = 0; i < pi.count(); ++i) {
               rounded.set_real(i, pi.real(i));
               pi.set_real(i, rounded.real(i));
             }
             a.inputs["Pi"] = pi;
             return true;
           });
         }},
    };
  }
};

HARNESS_CARD(RotateCard)

}  // namespace
}  // namespace harness
