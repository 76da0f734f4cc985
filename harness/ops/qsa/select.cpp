// SPDX-License-Identifier: Apache-2.0
// Card of qsa.select. The chosen blocks are judged as a set against the oracle's scores, everything
// else exactly.
#include "qsa/select.h"

#include <algorithm>
#include <cmath>

#include "harness/ops/qsa_index.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {
    {"topk", "64", "token_topk, a multiple of ratio"},
    {"workspace", "134217728", "workspace_bytes: logits of one chunk of rows"},
};
constexpr auto kAxes = with_index(kOwn);

int64_t columns_of(const Case& c) {
  return c.inputs.at("page_table").shape[1] * c.inputs.at("k_cache").shape[1];
}

// What a row's columns are made of: `blocks` chosen blocks of C tokens, `holes` columns of -1, the
// tail, -1.
struct Layout {
  int64_t blocks, holes, first_tail;
};
Layout layout_of(const RowView& r, int64_t columns, int64_t k, int64_t ratio) {
  const int64_t full = std::min(r.visible, k), blocks = std::min({r.visible, columns, k});
  return {blocks, (full - blocks) * ratio, full * ratio};
}

class SelectCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::select::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode", "ctx=700 dim=64"},
        {"boundary", "ctx=259 ragged=0 topk=256 dim=32 batch=speculative rows=5 requests=2"},
        {"prefill", "batch=prefill requests=1 rows=90 dim=32"},
        {"chunks-of-3",
         "workspace=960 page=16 width=5 ctx=300 requests=2 batch=speculative rows=4 dim=64"},
        {"one-row-chunks", "workspace=1 ctx=300 requests=3 dim=32"},
        {"short", "ctx=20 requests=3 dim=64"},
        {"zero-ties", "values=zero-ties dim=16 ctx=600 requests=2 topk=32"},
        {"ratio-2", "ratio=2 topk=64 ctx=300 requests=2 dim=32"},
        {"ratio-3", "ratio=3 topk=48 ctx=250 requests=2 dim=32 page=5"},
        {"page-196", "page=196 ctx=1700 requests=2 dim=16 topk=128"},
        {"k-512", "topk=2048 ctx=2400 requests=1 dim=16 heads=2 page=392"},
        {"k-beyond-shared-memory", "topk=8400 ctx=9000 requests=1 dim=16 heads=1"},
        {"dead-pages", "hostile=pages ctx=400 dim=32 page=4"},
        {"padding", "padding=3 requests=2 ctx=200 dim=32"},
        {"hostile", "hostile=all batch=speculative rows=3 requests=3 ctx=300 dim=32 padding=1"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    Case c;
    c.op = op();
    c.seed = seed;
    make_index_inputs(c, axes, Random(seed, "qsa.select"));
    const int64_t ratio = scalar_integer(c, "compress_ratio"), topk = axes.integer("topk", 1);
    if (topk % ratio)
      throw std::invalid_argument("qsa.select: axis topk: expected a multiple of ratio = " +
                                  std::to_string(ratio) + ", got " + std::to_string(topk));
    c.scalars["token_topk"] = std::to_string(topk);
    c.scalars["workspace_bytes"] = std::to_string(axes.integer("workspace", 1));
    c.shape += " K=" + std::to_string(topk / ratio);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    if (c.inputs.at("q").shape[0] > 0) note_index_inputs(out, c, columns_of(c));
    return out;
  }

  Verdict judge(const Case& c, const reference::Result& oracle,
                const TensorMap& actual) const override {
    const auto it = actual.find("indices");
    const reference::Output& truth = oracle.outputs.at("indices");
    // The default names what does not belong; 0 rows are its skip.
    if (it == actual.end() || actual.size() > 1 || it->second.dtype != TK_I32 ||
        it->second.shape != truth.shape || it->second.count() == 0)
      return Card::judge(c, oracle, actual);
    Verdict v;
    v.findings = oracle.findings;
    v.judged = it->second.count();
    const std::vector<RowView> rows = row_views(c);
    int64_t bad_rows = 0;
    for (int64_t i = 0; i < it->second.shape[0]; ++i)
      bad_rows += !judge_row(c, oracle, it->second, rows[size_t(i)], i, v);
    if (bad_rows == 0) return v;
    v.status = Status::fail;
    v.reason = "indices: " + std::to_string(bad_rows) + " of " +
               std::to_string(it->second.shape[0]) + " rows wrong; " + v.reason;
    return v;
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const int64_t ratio = scalar_integer(c, "compress_ratio"),
                  k = scalar_integer(c, "token_topk") / ratio;
    const int64_t width = k * ratio + ratio - 1, row = linear / width;
    const RowView r = row_views(c)[size_t(row)];
    return "row " + std::to_string(row) + " (request " + std::to_string(r.request) + ", position " +
           std::to_string(r.position) + "), column " + std::to_string(linear % width);
  }

  Cost cost(const Case& c) const override {
    Cost cost = index_cost(c, columns_of(c));
    const double topk =
        double(scalar_integer(c, "token_topk") + scalar_integer(c, "compress_ratio") - 1);
    cost.bytes += 4.0 * double(c.inputs.at("q").shape[0]) * topk;
    return cost;
  }

  std::vector<Fault> faults() const override {
    return {
        {"duplicate-block", "one block twice",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("indices");
           const int64_t ratio = scalar_integer(c, "compress_ratio"),
                         k = scalar_integer(c, "token_topk") / ratio;
           const std::vector<RowView> rows = row_views(c);
           for (size_t i = 0; i < rows.size(); ++i) {
             if (layout_of(rows[i], columns_of(c), k, ratio).blocks < 2) continue;
             for (int64_t j = 0; j < ratio; ++j)
               t.set_integer(int64_t(i) * t.shape[1] + ratio + j,
                             t.integer(int64_t(i) * t.shape[1] + j));
             return true;
           }
           return false;
         }},
        {"wrong-block", "the first chosen block gives way to the worst of the row",
         plant_wrong_block},
        {"tail-lost", "the open group's tokens become -1",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("indices");
           const int64_t ratio = scalar_integer(c, "compress_ratio"),
                         k = scalar_integer(c, "token_topk") / ratio;
           const std::vector<RowView> rows = row_views(c);
           for (size_t i = 0; i < rows.size(); ++i) {
             const int64_t at =
                 int64_t(i) * t.shape[1] + layout_of(rows[i], columns_of(c), k, ratio).first_tail;
             if (rows[i].position < 0 || (rows[i].position + 1) % ratio == 0 || t.integer(at) < 0)
               continue;
             t.set_integer(at, -1);
             return true;
           }
           return false;
         }},
    };
  }

 private:
  bool judge_row(const Case& c, const reference::Result& oracle, const Tensor& t, const RowView& r,
                 int64_t i, Verdict& v) const {
    const int64_t ratio = scalar_integer(c, "compress_ratio"), width = t.shape[1],
                  k = (width - ratio + 1) / ratio;
    const int64_t columns = columns_of(c), live = std::min(r.visible, columns);
    const Layout layout = layout_of(r, columns, k, ratio);
    const reference::Output& indices = oracle.outputs.at("indices");
    const reference::Output& scores = oracle.outputs.at("scores");
    bool right = true;
    const auto bad = [&](int64_t column, const std::string& text) {
      right = false;
      ++v.mismatches;
      if (!v.first_bad.empty()) return;
      v.first_bad = "indices: " + place(c, "indices", i * width + column) + ": " + text;
      v.reason = "first: row " + std::to_string(i) + ", " + text;
    };
    std::set<int64_t> chosen;
    for (int64_t b = 0; b < layout.blocks; ++b) {
      const int64_t column = b * ratio, first = t.integer(i * width + column),
                    block = first / ratio;
      if (first < 0 || first % ratio != 0 || block >= live) {
        bad(column, "expected the first token of one of " + std::to_string(live) +
                        " visible blocks, got " + std::to_string(first));
        continue;
      }
      for (int64_t j = 1; j < ratio; ++j)
        if (t.integer(i * width + column + j) != first + j)
          bad(column + j, "expected token " + std::to_string(first + j) + " of block " +
                              std::to_string(block) + ", got " +
                              std::to_string(t.integer(i * width + column + j)));
      if (!chosen.insert(block).second)
        bad(column, "block " + std::to_string(block) + " is chosen twice");
    }
    for (int64_t column = layout.blocks * ratio; column < width; ++column) {
      const int64_t got = t.integer(i * width + column);
      const int64_t due =
          column < layout.first_tail ? -1 : indices.integer[size_t(i * width + column)];
      if (got != due)
        bad(column, (column < layout.first_tail ? "expected -1 (no column for this block)"
                                                : "expected " + std::to_string(due)) +
                        std::string(", got ") + std::to_string(got));
    }
    if (!right || live <= k) return right;

    // A block may stand for another only where their scores differ by less than the bounds of the
    // two.
    const auto value = [&](int64_t b) { return scores.value[size_t(i * columns + b)]; };
    const auto bound = [&](int64_t b) { return scores.bound[size_t(i * columns + b)]; };
    const auto low = [&](int64_t b) {
      return std::isinf(bound(b)) ? -INFINITY : value(b) - bound(b);
    };
    const auto high = [&](int64_t b) {
      return std::isinf(bound(b)) ? INFINITY : value(b) + bound(b);
    };
    int64_t best = -1, wrong = 0, worst = -1;  // best: the one not chosen that surely scores most
    for (int64_t b = 0; b < live; ++b)
      if (!chosen.contains(b) && (best < 0 || low(b) > low(best))) best = b;
    for (const int64_t b : chosen)
      if (high(b) < low(best)) {
        ++wrong;
        if (worst < 0 || value(b) < value(worst)) worst = b;
      }
    if (wrong == 0) return true;
    v.err_max_abs = std::max(v.err_max_abs, value(best) - value(worst));
    char text[200];
    std::snprintf(text, sizeof text,
                  "wrong_selected=%lld: block %lld (score %.9g) is chosen, block %lld (score %.9g) "
                  "is not; bounds %.3g",
                  static_cast<long long>(wrong), static_cast<long long>(worst), value(worst),
                  static_cast<long long>(best), value(best), bound(best) + bound(worst));
    int64_t column = 0;
    while (t.integer(i * width + column) != worst * ratio) column += ratio;
    bad(column, text);
    return false;
  }

  static bool plant_wrong_block(const Case& c, TensorMap& out) {
    Tensor& t = out.at("indices");
    const int64_t ratio = scalar_integer(c, "compress_ratio"),
                  k = scalar_integer(c, "token_topk") / ratio;
    const std::vector<RowView> rows = row_views(c);
    const HostCall call(c);
    const reference::Result truth =
        reference::find("qsa.select")(toolkit::Args(qsa::select::contract, call.call()));
    const reference::Output& scores = truth.outputs.at("scores");
    const int64_t columns = columns_of(c);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (std::min(rows[i].visible, columns) <= k) continue;
      const auto score = [&](int64_t b) { return scores.value[i * size_t(columns) + size_t(b)]; };
      int64_t worst = 0, best_slot = 0;
      const auto block_at = [&](int64_t s) {
        return t.integer(int64_t(i) * t.shape[1] + s * ratio) / ratio;
      };
      for (int64_t b = 0; b < std::min(rows[i].visible, columns); ++b)
        if (score(b) < score(worst)) worst = b;
      bool has = false;
      for (int64_t s = 0; s < k; ++s) {
        has |= block_at(s) == worst;
        if (score(block_at(s)) > score(block_at(best_slot))) best_slot = s;
      }
      if (has || !(score(block_at(best_slot)) > score(worst) + 1e-3)) continue;
      for (int64_t j = 0; j < ratio; ++j)
        t.set_integer(int64_t(i) * t.shape[1] + best_slot * ratio + j, worst * ratio + j);
      return true;
    }
    return false;
  }
};

HARNESS_CARD(SelectCard)

}  // namespace
}  // namespace harness
