// SPDX-License-Identifier: Apache-2.0
// Card of qsa.topk. Judged exactly: distinct columns in range, the multiset of chosen values, -1
// behind them; no tolerance, any order, any choice among exact ties.
#include "qsa/topk.h"

#include <algorithm>
#include <cmath>

#include "harness/judge/poison.h"
#include "harness/ops/qsa_rows.h"
#include "reference/parallel.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"rows", "4", "rows"},
    {"columns", "1000", "columns of logits"},
    {"k", "64", "how many are chosen"},
    {"visible", "0", "candidates of a row, 0: all columns; a list is dealt to the rows in turn"},
    {"values", "normal",
     "normal, crowded (1 to 1.244, one bin of 16-bit keys), relu (most are 0), equal, ascending, "
     "special (NaN, inf, both zeros)"},
    {"winners", "100", "relu: scores above 0"},
    {"index", "i32", "i32 or i64, type of visible_blocks"},
    {"stride", "0", "elements from row to row of logits, 0: dense"},
    {"behind", "poison", "columns from visible on: poison (NaN) or large"},
    {"negative", "0", "1: every third row has visible below 0"},
};

int64_t candidates(const Case& c, int64_t row) {
  return std::clamp<int64_t>(c.inputs.at("visible_blocks").integer(row), 0,
                             c.inputs.at("logits").shape[1]);
}
// NaN last, both zeros equal.
bool above(double a, double b) { return !std::isnan(a) && (std::isnan(b) || a > b); }
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class TopkCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::topk::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"normal", ""},
        {"k-512", "columns=3000 k=512 rows=2"},
        {"k-2048-relu-ties", "columns=8320 k=2048 values=relu rows=1"},
        {"crowded-bin", "columns=4097 k=512 values=crowded rows=2"},
        {"crowded-33-rows", "columns=700 k=64 values=crowded rows=33"},
        {"all-equal", "values=equal columns=300 k=17"},
        {"all-zero-relu", "values=relu winners=0 columns=500 k=128 rows=2"},
        {"ascending", "values=ascending columns=777 k=100"},
        {"special-values", "values=special columns=200 k=60 rows=6"},
        {"around-k", "visible=64,63,65,1,0,2 rows=6 columns=100"},
        {"visible-beyond-columns", "visible=5000,7 columns=300 k=64"},
        {"negative-visible", "negative=1 rows=6 columns=200"},
        {"large-behind-visible", "visible=90,70 behind=large columns=200"},
        {"k-1", "k=1 columns=257"},
        {"k-beyond-columns", "k=300 columns=65"},
        {"strided-i64", "stride=515 columns=512 index=i64"},
        {"sampled", "columns=8192 k=512 rows=2"},
        {"sampled-odd-length", "columns=32766 visible=30001 k=512 rows=1"},
        {"sampled-crowded", "columns=9000 k=512 rows=1 values=crowded"},
        {"longer-than-the-registers", "columns=40003 k=512 rows=1"},
        {"mass-ties", "columns=9000 k=512 rows=1 values=equal"},
        {"mass-ties-short", "columns=6000 k=2048 rows=1 values=relu winners=1500"},
        {"segments-of-segments", "columns=70001 k=2048 rows=1 values=relu winners=3000"},
        {"long-row-large-k", "columns=33001 k=3000 rows=1"},
        {"k-beyond-a-list", "columns=5000 k=4000 rows=1"},
        {"no-rows", "rows=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.topk");
    const int64_t rows = axes.integer("rows"), columns = axes.integer("columns"),
                  k = axes.integer("k", 1), stride = axes.integer("stride");
    const std::string values =
        axes.word("values", {"normal", "crowded", "relu", "equal", "ascending", "special"});
    if (stride != 0 && stride < columns)
      throw std::invalid_argument("qsa.topk: axis stride: expected 0 or at least columns, got " +
                                  std::to_string(stride));
    Tensor all = make_tensor(TK_F32, {rows, stride ? stride : columns});
    poison_storage(all);
    Tensor logits = view(all, 0, {rows, columns}, all.strides);
    const std::vector<int64_t> visible = axes.integers("visible", 0);
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t v = visible[size_t(i) % visible.size()];
      if (v == 0 && visible.size() == 1) v = columns;
      if (axes.flag("negative") && i % 3 == 1) v = -1 - i;
      lengths.push_back(v);
    }
    const bool large = axes.word("behind", {"poison", "large"}) == "large";
    const int64_t winners = axes.integer("winners");
    reference::for_each_row(rows, [&](int64_t i) {
      const Random own = random.stream("row", uint64_t(i));
      const std::vector<int64_t> order = own.shuffle(columns);
      const int64_t live = std::clamp<int64_t>(lengths[size_t(i)], 0, columns);
      for (int64_t c = 0; c < columns; ++c)
        if (c < live || large)
          logits.set_real(i * columns + c,
                          c < live ? value(values, own, order[size_t(c)], columns, winners) : 1e30);
    });
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "R=" + std::to_string(rows) + " columns=" + std::to_string(columns) +
              " k=" + std::to_string(k);
    c.inputs["logits"] = logits;
    c.inputs["visible_blocks"] = from_integers(axes.dtype("index", toolkit::kIndex), lengths);
    c.scalars["k"] = std::to_string(k);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const Tensor& visible = c.inputs.at("visible_blocks");
    const int64_t columns = c.inputs.at("logits").shape[1];
    int64_t beyond = 0, first = 0, nan = 0, nan_row = 0, dead = 0, dead_row = 0;
    const int64_t k = scalar_integer(c, "k");
    for (int64_t i = 0; i < visible.count(); ++i) {
      if (visible.integer(i) > columns && beyond++ == 0) first = i;
      int64_t finite = 0, nans = 0;
      const int64_t v = candidates(c, i);
      for (int64_t col = 0; col < v; ++col) {
        const double x = c.inputs.at("logits").real(i * columns + col);
        nans += std::isnan(x);
        finite += x > -INFINITY;
      }
      if (nans && nan++ == 0) nan_row = i;
      if (finite < std::min(v, k) && dead++ == 0) dead_row = i;
    }
    if (beyond)
      out.push_back(std::to_string(beyond) + " rows see more than the " + std::to_string(columns) +
                    " columns (first: row " + std::to_string(first) + ", " +
                    std::to_string(visible.integer(first)) + ")");
    if (nan)
      out.push_back(std::to_string(nan) + " rows hold NaN scores (first: row " +
                    std::to_string(nan_row) + ")");
    if (dead)
      out.push_back(std::to_string(dead) +
                    " rows have to choose columns whose score is -inf (first: row " +
                    std::to_string(dead_row) + ")");
    return out;
  }

  Verdict judge(const Case& c, const reference::Result& oracle,
                const TensorMap& actual) const override {
    const auto it = actual.find("block_indices");
    if (it == actual.end() || actual.size() > 1 || it->second.dtype != TK_I32 ||
        it->second.shape != oracle.outputs.at("block_indices").shape)
      return Card::judge(c, oracle, actual);  // names what does not belong
    Verdict v;
    v.findings = oracle.findings;
    const Tensor& chosen = it->second;
    Counts n;
    for (int64_t i = 0; i < chosen.shape[0]; ++i)
      judge_row(c, oracle.outputs.at("block_indices"), chosen, i, n, v);
    v.judged = chosen.count();
    if (v.judged == 0) {
      v.status = Status::skip;
      v.reason = "0 rows";
      return v;
    }
    if (!n.any()) return v;
    v.status = Status::fail;
    v.mismatches = n.wrong + n.duplicates + n.unfilled + n.outside + n.behind;
    v.unwritten = n.unwritten;
    const auto add = [&](int64_t count, const char* name) {
      if (count)
        v.reason += (v.reason.empty() ? "block_indices: " : ", ") + std::string(name) + "=" +
                    std::to_string(count);
    };
    add(n.wrong, "wrong_selected");
    add(n.duplicates, "duplicates");
    add(n.unfilled, "unfilled_slots");
    add(n.outside, "out_of_range");
    add(n.behind, "not_minus_one_behind");
    add(n.unwritten, "unwritten");
    if (n.wrong) {
      char text[64];
      std::snprintf(text, sizeof text, " (worst in row %lld, gap %.3g)",
                    static_cast<long long>(n.worst_row), n.worst_gap);
      v.reason += text;
    }
    return v;
  }

  std::vector<std::string_view> row_inputs() const override { return {"logits", "visible_blocks"}; }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const int64_t k = scalar_integer(c, "k");
    return "row " + std::to_string(linear / k) + ", slot " + std::to_string(linear % k) + " (" +
           std::to_string(candidates(c, linear / k)) + " candidates)";
  }

  Cost cost(const Case& c) const override {
    Cost cost;
    for (int64_t i = 0; i < c.inputs.at("visible_blocks").count(); ++i)
      cost.bytes += 4.0 * double(candidates(c, i)) + 4.0 * double(scalar_integer(c, "k") + 1);
    return cost;
  }

  std::vector<Fault> faults() const override {
    return {
        {"winner-dropped", "the best column of a row gives way to the best one not chosen",
         [](const Case& c, TensorMap& out) { return swap(c, out, true); }},
        {"last-dropped", "the least of the chosen gives way to the best one not chosen",
         [](const Case& c, TensorMap& out) { return swap(c, out, false); }},
        {"duplicate", "one column twice",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("block_indices");
           const int64_t k = t.shape[1];
           for (int64_t i = 0; i < t.shape[0]; ++i)
             if (std::min(candidates(c, i), k) > 1) {
               t.set_integer(i * k + 1, t.integer(i * k));
               return true;
             }
           return false;
         }},
        {"unfilled", "the last filled slot becomes -1",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("block_indices");
           for (int64_t i = t.count() - 1; i >= 0; --i)
             if (t.integer(i) >= 0) {
               t.set_integer(i, -1);
               return true;
             }
           return false;
         }},
        {"behind-visible", "a column that is not visible",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("block_indices");
           for (int64_t i = 0; i < t.shape[0]; ++i)
             if (const int64_t v = candidates(c, i); v > 0) {
               t.set_integer(i * t.shape[1], v);
               return true;
             }
           return false;
         }},
    };
  }

 private:
  struct Counts {
    int64_t wrong = 0, duplicates = 0, unfilled = 0, outside = 0, behind = 0, unwritten = 0,
            worst_row = 0;
    double worst_gap = -1;
    bool any() const { return wrong || duplicates || unfilled || outside || behind || unwritten; }
  };

  static double value(const std::string& kind, const Random& own, int64_t rank, int64_t columns,
                      int64_t winners) {
    if (kind == "crowded") return 1.0 + double(rank) * 0.244 / double(columns);
    if (kind == "relu") return rank < winners ? 1.0 + double(rank + 1) / double(winners) : 0.0;
    if (kind == "equal") return 0.75;
    if (kind == "ascending") return double(rank) - double(columns) / 2;
    if (kind == "special") {
      const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e38, 1e-45, -1e-45};
      return rank % 3 ? own.normal(uint64_t(rank)) : odd[(rank / 3) % 8];
    }
    return own.normal(uint64_t(rank));
  }

  void judge_row(const Case& c, const reference::Output& truth, const Tensor& chosen, int64_t i,
                 Counts& n, Verdict& v) const {
    const Tensor& logits = c.inputs.at("logits");
    const int64_t columns = logits.shape[1], k = chosen.shape[1], live = candidates(c, i),
                  filled = std::min(live, k);
    const auto score = [&](int64_t column) { return logits.real(i * columns + column); };
    const auto bad = [&](int64_t slot, const std::string& text) {
      if (v.first_bad.empty())
        v.first_bad = "block_indices: " + place(c, "block_indices", i * k + slot) + ": " + text;
    };
    std::set<int64_t> seen;
    std::vector<std::pair<double, int64_t>> got;  // score, slot
    for (int64_t s = 0; s < k; ++s) {
      const int64_t column = chosen.integer(i * k + s);
      const std::string text = "got " + std::to_string(column);
      if (s >= filled) {
        if (column == -1) continue;
        ++n.behind;
        bad(s, "expected -1 behind the chosen, " + text);
      } else if (is_output_poison(chosen.dtype, chosen.element(i * k + s))) {
        ++n.unwritten;
        bad(s, "expected a column, nothing written");
      } else if (column == -1) {
        ++n.unfilled;
        bad(s, "expected a column, got -1");
      } else if (column < 0 || column >= live) {
        ++n.outside;
        bad(s, "expected a column of [0," + std::to_string(live) + "), " + text);
      } else if (!seen.insert(column).second) {
        ++n.duplicates;
        bad(s, "column " + std::to_string(column) + " is chosen twice");
      } else {
        got.emplace_back(score(column), s);
      }
    }
    // The values, best first, against those of the exact choice. Slots that are faulty already are
    // not counted again.
    std::vector<double> due;
    for (int64_t s = 0; s < filled; ++s) due.push_back(score(truth.integer[size_t(i * k + s)]));
    std::sort(due.begin(), due.end(), above);
    std::sort(got.begin(), got.end(),
              [](const auto& a, const auto& b) { return above(a.first, b.first); });
    int64_t wrong = 0;
    size_t d = 0;
    std::vector<double> lost;
    std::vector<std::pair<double, int64_t>> intruders;
    for (const auto& g : got) {
      while (d < due.size() && above(due[d], g.first)) lost.push_back(due[d++]);
      if (d < due.size() && same(due[d], g.first))
        ++d;
      else
        intruders.push_back(g);
    }
    while (d < due.size()) lost.push_back(due[d++]);
    wrong = int64_t(intruders.size());
    if (wrong == 0) return;
    n.wrong += wrong;
    // The best lost value against the worst intruder.
    const double gap = lost.front() - intruders.back().first;
    if (n.worst_gap < gap || std::isnan(gap)) {
      n.worst_gap = gap;
      n.worst_row = i;
    }
    v.err_max_abs = std::max(v.err_max_abs, std::isnan(gap) ? INFINITY : gap);
    char text[160];
    std::snprintf(text, sizeof text, "column %lld with score %.9g is chosen, one with %.9g is not",
                  static_cast<long long>(chosen.integer(i * k + intruders.back().second)),
                  intruders.back().first, lost.front());
    bad(intruders.back().second, text);
  }

  // Replaces the best (or the least) of a row's choice by the best column that is not chosen and
  // scores less.
  static bool swap(const Case& c, TensorMap& out, bool best) {
    Tensor& t = out.at("block_indices");
    const Tensor& logits = c.inputs.at("logits");
    const int64_t columns = logits.shape[1], k = t.shape[1];
    for (int64_t i = 0; i < t.shape[0]; ++i) {
      const int64_t live = candidates(c, i);
      if (live <= k) continue;
      const auto score = [&](int64_t column) { return logits.real(i * columns + column); };
      std::set<int64_t> chosen;
      int64_t victim = 0, heir = -1;
      for (int64_t s = 0; s < k; ++s) {
        chosen.insert(t.integer(i * k + s));
        const double a = score(t.integer(i * k + s)), b = score(t.integer(i * k + victim));
        if (best ? above(a, b) : above(b, a)) victim = s;
      }
      const double lost = score(t.integer(i * k + victim));
      for (int64_t col = 0; col < live; ++col)
        if (!chosen.contains(col) && above(lost, score(col)) &&
            (heir < 0 || above(score(col), score(heir))))
          heir = col;
      if (heir < 0) continue;
      t.set_integer(i * k + victim, heir);
      return true;
    }
    return false;
  }
};

HARNESS_CARD(TopkCard)

}  // namespace
}  // namespace harness
