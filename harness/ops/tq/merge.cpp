// SPDX-License-Identifier: Apache-2.0
// Card of tq.merge.
#include "tq/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "harness/generate/axes.h"
#include "harness/generate/fill.h"
#include "harness/ops/tq_cards.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"heads", "4", "query heads"},
    {"dim", "64", "head size"},
    {"lens", "33,5,64,100", "tokens of each sequence"},
    {"splits", "32", "splits in use, num_kv_splits"},
    {"room", "0", "splits that mid_o has beyond those"},
    {"dtype", "f16", "of the output: f16, bf16, f32"},
    {"index", "i32", "of the lengths: i32, i64"},
    {"lse_scale", "2", "standard deviation of the partial lse"},
    {"hostile", "none", "none, dead_splits (used ones with lse -inf and huge partials), all_dead, nan_lse, inf_lse, padded"},
};

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t batch, heads, capacity, row;  // row = D + 1
};
Sizes sizes_of(const Case& c) {
  const Shape& s = c.inputs.at("mid_o").shape;
  return {s[0], s[1], s[2], s[3]};
}
int64_t splits_of(const Case& c) {
  const auto it = c.scalars.find("num_kv_splits");
  return it == c.scalars.end() ? sizes_of(c).capacity : std::stoll(it->second);
}
int64_t used_splits(int64_t tokens, int64_t splits) {
  if (tokens <= 0) return 0;
  const int64_t length = tokens / splits + (tokens % splits != 0);
  return tokens / length + (tokens % length != 0);
}

// Element (b, h, split, d) of a case's mid_o, row-major.
int64_t linear_of(const Sizes& s, int64_t b, int64_t h, int64_t split, int64_t d) {
  return ((b * s.heads + h) * s.capacity + split) * s.row + d;
}

// Recomputes with mid_o changed: visit(tensor, sizes, b, h, used).
template <class Change>
bool plant_changed(const Case& c, TensorMap& outputs, Change&& change) {
  return plant_altered(c, outputs, [&](Case& altered) {
    Tensor mid = altered.inputs.at("mid_o").packed();
    const Sizes s = sizes_of(altered);
    bool any = false;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        any |= change(mid, s, b, h, used_splits(altered.inputs.at("seq_lens").integer(b), splits_of(altered)));
    altered.inputs["mid_o"] = mid;
    return any;
  });
}

class MergeCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return tq::merge::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"thirty-two", ""},
        {"ceil-ranges", "lens=1,31,32,33,63,65"},
        {"empty-sequences", "lens=0,7,0"},
        {"one-split", "splits=1"},
        {"hundred-splits", "splits=100 lens=1000,100,99,37"},
        {"two-splits-bf16", "splits=2 dtype=bf16 lens=1,2,3"},
        {"sixty-four-f32", "splits=64 dtype=f32 dim=128 lens=700,64"},
        {"room-d72", "splits=3 room=5 dim=72"},
        {"far-apart", "lse_scale=200"},
        {"dead-splits", "hostile=dead_splits"},
        {"all-dead", "hostile=all_dead lens=64,20"},
        {"nan-lse", "hostile=nan_lse"},
        {"inf-lse", "hostile=inf_lse"},
        {"padded-rows-i64", "hostile=padded index=i64 heads=3"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, op());
    const std::vector<int64_t> lens = axes.integers("lens");
    const int64_t splits = axes.integer("splits", 1), dim = axes.integer("dim", 1);
    const std::string hostile =
        axes.word("hostile", {"none", "dead_splits", "all_dead", "nan_lse", "inf_lse", "padded"});
    const Sizes s{int64_t(lens.size()), axes.integer("heads", 1), splits + axes.integer("room"), dim + 1};
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "B=" + std::to_string(s.batch) + " Hq=" + std::to_string(s.heads) + " D=" + std::to_string(dim) +
              " splits=" + std::to_string(splits);
    Tensor mid = make_tensor(TK_F32, {s.batch, s.heads, s.capacity, s.row + (hostile == "padded" ? 7 : 0)});
    poison_storage(mid);
    mid = view(mid, 0, {s.batch, s.heads, s.capacity, s.row}, mid.strides);
    const Random parts = random.stream("partial"), sums = random.stream("lse");
    const double lse_scale = axes.number("lse_scale", 0, 1e30);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; ++h)
        for (int64_t split = 0; split < used_splits(lens[size_t(b)], splits); ++split) {
          const bool dead = hostile == "all_dead" || (hostile == "dead_splits" && split % 3 == 1);
          for (int64_t d = 0; d < dim; ++d) {
            const int64_t i = linear_of(s, b, h, split, d);
            mid.set_real(i, dead ? 1e30 : parts.normal(uint64_t(i)));
          }
          const int64_t i = linear_of(s, b, h, split, dim);
          double lse = dead ? -kInf : lse_scale * sums.normal(uint64_t(i));
          if (b == 0 && h == 0 && split == 0 && hostile == "nan_lse") lse = NAN;
          if (b == 0 && h == 0 && split == 0 && hostile == "inf_lse") lse = kInf;
          mid.set_real(i, lse);
        }
    c.inputs["mid_o"] = mid;
    c.inputs["seq_lens"] = from_integers(axes.dtype("index", toolkit::kIndex), lens);
    c.scalars["num_kv_splits"] = std::to_string(splits);
    c.scalars["output_dtype"] = axes.word("dtype", {"f16", "bf16", "f32"});
    return c;
  }

  // A dump says the output's dtype by its result.
  void complete(Case& c) const override {
    if (c.scalars.count("output_dtype")) return;
    for (const TensorMap* given : {&c.actual, &c.expected})
      if (const auto it = given->find("output"); it != given->end()) {
        c.scalars["output_dtype"] = toolkit::name_of(it->second.dtype);
        return;
      }
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const Tensor& lens = c.inputs.at("seq_lens");
    for (int64_t b = 0; b < lens.count(); ++b)
      if (lens.integer(b) < 0)
        out.push_back("batch " + std::to_string(b) + ": seq_lens " + std::to_string(lens.integer(b)) +
                      " is below 0, taken as 0");
    return out;
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    const Sizes s = sizes_of(c);
    if (output == "lse") return place_of(linear, {{"batch", s.batch}, {"head", s.heads}});
    return place_of(linear, {{"batch", s.batch}, {"head", s.heads}, {"dim", s.row - 1}});
  }

  Cost cost(const Case& c) const override {
    const Sizes s = sizes_of(c);
    const Tensor& lens = c.inputs.at("seq_lens");
    double parts = 0;
    for (int64_t b = 0; b < s.batch; ++b) parts += double(used_splits(lens.integer(b), splits_of(c)) * s.heads);
    const auto dtype = c.scalars.find("output_dtype");
    const double element = dtype == c.scalars.end() ? 2 : toolkit::bytes_of(toolkit::dtype_named(dtype->second));
    const double rows = double(s.batch * s.heads);
    return {parts * double(s.row) * 4 + rows * (element * double(s.row - 1) + 4) + tensor_bytes(c, "seq_lens"),
            parts * 2 * double(s.row - 1)};
  }

  std::vector<Fault> faults() const override {
    return {
        {"plain-mean", "every used split weighs the same",
         [](const Case& c, TensorMap& o) {
           return plant_changed(c, o, [](Tensor& mid, const Sizes& s, int64_t b, int64_t h, int64_t used) {
             for (int64_t i = 0; i < used; ++i) mid.set_real(linear_of(s, b, h, i, s.row - 1), 0);
             return used > 1;
           });
         }},
        {"base-2", "weights 2^lse instead of e^lse",
         [](const Case& c, TensorMap& o) {
           return plant_changed(c, o, [](Tensor& mid, const Sizes& s, int64_t b, int64_t h, int64_t used) {
             for (int64_t i = 0; i < used; ++i) {
               const int64_t at = linear_of(s, b, h, i, s.row - 1);
               mid.set_real(at, mid.real(at) * std::log(2.0));
             }
             return used > 0;
           });
         }},
        {"split-lost", "the last used split not read",
         [](const Case& c, TensorMap& o) {
           return plant_changed(c, o, [](Tensor& mid, const Sizes& s, int64_t b, int64_t h, int64_t used) {
             if (used > 0) mid.set_real(linear_of(s, b, h, used - 1, s.row - 1), -kInf);
             return used > 0;
           });
         }},
        {"empty-split-read", "a split behind the last used one taken as lse 0",
         [](const Case& c, TensorMap& o) {
           return plant_altered(c, o, [](Case& a) {
             Tensor mid = a.inputs.at("mid_o").packed(), lens = a.inputs.at("seq_lens").packed();
             const Sizes s = sizes_of(a);
             bool any = false;
             for (int64_t b = 0; b < s.batch; ++b) {
               const int64_t used = used_splits(lens.integer(b), splits_of(a));
               if (used == splits_of(a)) continue;
               for (int64_t h = 0; h < s.heads; ++h)
                 for (int64_t split = used; split < splits_of(a); ++split)
                   for (int64_t d = 0; d < s.row; ++d) mid.set_real(linear_of(s, b, h, split, d), 0);
               lens.set_integer(b, splits_of(a));
               any = true;
             }
             a.inputs["mid_o"] = mid;
             a.inputs["seq_lens"] = lens;
             return any;
           });
         }},
    };
  }
};

HARNESS_CARD(MergeCard)

}  // namespace
}  // namespace harness
