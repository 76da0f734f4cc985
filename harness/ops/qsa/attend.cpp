// SPDX-License-Identifier: Apache-2.0
// Card of qsa.attend.
#include "qsa/attend.h"

#include <algorithm>
#include <cmath>

#include "harness/ops/qsa_kv.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {
    {"width", "67", "T, columns of the selection"},
    {"ratio", "4",
     "tokens are chosen in groups of this many, then the open group's tail; 1: single tokens"},
    {"overlap", "0.9", "Jaccard overlap of neighbouring rows' groups"},
    {"ascending", "0", "1: groups ascend, 0: any order"},
    {"duplicates", "0", "groups of a row that repeat another"},
    {"holes", "0", "groups of a row that become -1"},
    {"leading", "0", "columns of -1 before the first token"},
    {"index", "i32", "i32 or i64, of indices, table and requests"},
    {"hostile", "none",
     "none, requests, pages, tokens, empty-rows, nan-key, inf-value, nan-query, all"},
};
constexpr auto kAxes = with_kv(kOwn);

struct LiveToken {
  int64_t column, token, page, slot;
};
std::vector<LiveToken> live_tokens(const Case& c, int64_t row) {
  const Tensor& indices = c.inputs.at("logical_indices");
  const Tensor& k = c.inputs.at("k_cache");
  const int64_t request = c.inputs.at("token_to_req").integer(row), page = k.shape[1];
  std::vector<LiveToken> live;
  for (int64_t column = 0; column < indices.shape[1]; ++column) {
    const int64_t token = indices.integer(row * indices.shape[1] + column);
    const int64_t id = page_of(c.inputs.at("block_table"), request, token, page, k.shape[0]);
    if (id >= 0) live.push_back({column, token, id, token % page});
  }
  return live;
}

class AttendCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::attend::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode", "requests=3 ctx=200 heads=8 kv=2 dim=64"},
        {"tp1-group-12", "requests=1 ctx=150 heads=24 kv=2 dim=256 width=35 layout=halves"},
        {"tp4-group-6-speculative",
         "batch=speculative requests=1 rows=4 ctx=150 heads=6 kv=1 dim=128"},
        {"tp8-group-3", "requests=2 ctx=100 heads=3 kv=1 dim=64"},
        {"group-5-page-20", "requests=2 ctx=100 heads=10 kv=2 dim=40 page=20 layout=interleaved"},
        {"group-1-head-major", "requests=2 ctx=90 heads=4 kv=4 dim=32 layout=head_major"},
        {"page-784", "requests=1 ctx=1500 heads=4 kv=1 dim=32 page=784 width=131"},
        {"page-800-padded", "requests=1 ctx=900 heads=3 kv=1 dim=16 page=800 layout=padded"},
        {"page-1568", "requests=1 ctx=1700 heads=2 kv=1 dim=16 page=1568"},
        {"page-1600-full-width", "requests=1 ctx=2300 heads=4 kv=2 dim=16 page=1600 width=2051"},
        {"prefill-overlap", "batch=prefill requests=1 rows=33 heads=4 kv=1 dim=16 width=19"},
        {"prefill-shared-tokens",
         "batch=chunked requests=1 rows=17 ctx=150 heads=12 kv=1 dim=256 width=35 overlap=0.95"},
        {"prefill-shared-tokens-hostile",
         "batch=chunked requests=2 rows=20 ctx=150 heads=6 kv=1 dim=256 width=35 hostile=all"},
        {"prefill-shared-inf-value",
         "batch=chunked requests=1 rows=33 ctx=150 heads=6 kv=1 dim=256 width=35 hostile=inf-value"},
        {"prefill-shared-tiles",
         "batch=chunked requests=1 rows=47 ctx=700 heads=24 kv=2 dim=256 page=64 width=131 scale=4"},
        {"prefill-shared-tiles-hostile",
         "batch=chunked requests=2 rows=40 ctx=150 heads=12 kv=1 dim=256 width=35 index=i64 hostile=all"},
        {"prefill-shared-tiles-inf-value",
         "batch=chunked requests=1 rows=45 ctx=150 heads=12 kv=1 dim=256 width=35 dtype=f16 hostile=inf-value"},
        {"f16", "requests=2 ctx=120 heads=4 kv=2 dim=64 dtype=f16"},
        {"peaked", "requests=2 ctx=120 heads=4 kv=1 dim=64 scale=4"},
        {"uniform-weights", "requests=1 ctx=300 heads=2 kv=1 dim=32 values=probe width=259"},
        {"duplicates-and-holes", "requests=2 ctx=150 heads=4 kv=2 dim=32 duplicates=4 holes=3"},
        {"leading-empty-tiles", "requests=2 ctx=150 heads=4 kv=2 dim=32 leading=64 width=200"},
        {"one-wide", "requests=2 ctx=40 heads=4 kv=4 dim=32 width=1 ratio=1"},
        {"i64", "requests=2 ctx=100 heads=2 kv=1 dim=32 index=i64 ratio=1"},
        {"empty-rows", "hostile=empty-rows requests=4 ctx=100 heads=4 kv=2 dim=32"},
        {"requests-outside", "hostile=requests requests=4 ctx=100 heads=4 kv=2 dim=32"},
        {"dead-pages-and-tokens",
         "hostile=all requests=5 ctx=120 heads=4 kv=2 dim=32 unused=2147483647"},
        {"nan-key", "hostile=nan-key requests=2 ctx=60 heads=4 kv=2 dim=16"},
        {"tuned-merged-in-place", "requests=1 ctx=400 heads=24 kv=2 dim=256 width=300 page=48"},
        {"tuned-merge-launch", "requests=1 ctx=900 heads=16 kv=1 dim=128 width=515 page=64"},
        {"tuned-hostile",
         "hostile=all requests=5 ctx=200 heads=16 kv=1 dim=128 width=131 index=i64 layout=padded"},
        {"tuned-many-rows",
         "batch=prefill requests=1 rows=17 ctx=90 heads=3 kv=1 dim=128 width=67 dtype=f16"},
        {"tuned-nan-key", "hostile=nan-key requests=2 ctx=60 heads=4 kv=2 dim=128"},
        {"tuned-inf-value", "hostile=inf-value requests=2 ctx=150 heads=12 kv=1 dim=256 width=131"},
        {"tuned-short-tiles", "requests=1 ctx=900 heads=6 kv=1 dim=256 width=200 page=64"},
        {"tuned-short-tiles-hostile", "hostile=all requests=1 ctx=900 heads=12 kv=1 dim=256 width=230 index=i64"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.attend");
    Batch batch = batch_of(axes, random.stream("batch"));
    const std::string hostile =
        axes.word("hostile", {"none", "requests", "pages", "tokens", "empty-rows", "nan-key",
                              "inf-value", "nan-query", "all"});
    const tk_dtype index = axes.dtype("index", toolkit::kIndex);
    Case c;
    c.op = op();
    c.seed = seed;
    PageTable pages = make_kv_inputs(c, "", axes, batch, index, random);
    Tensor indices = selection_of(axes, batch, random);
    const int64_t width = indices.shape[1];
    const bool all = hostile == "all";
    for (int64_t i = 0; i < batch.rows(); ++i) {
      if ((all && i % 5 == 1) || (hostile == "requests" && i % 2))
        batch.token_to_req[size_t(i)] = i % 4 == 1 ? -1 : batch.requests() + i;
      if ((all && i % 5 == 2) || (hostile == "empty-rows" && i % 2))
        for (int64_t t = 0; t < width; ++t) indices.set_integer(i * width + t, -1);
      if ((all && i % 5 == 3) || hostile == "tokens") {
        const int64_t bad[] = {pages.table.shape[1] * pages.page_size,
                               std::numeric_limits<int32_t>::max(), -9, -1};
        for (int64_t t = 0; t < width; t += 3) indices.set_integer(i * width + t, bad[(t / 3) % 4]);
      }
    }
    if (all || hostile == "pages") {
      const int64_t bad[] = {pages.pages, -3, std::numeric_limits<int32_t>::max()};
      for (int64_t i = 1; i < pages.table.count(); i += 3)
        pages.table.set_integer(i, bad[(i / 3) % 3]);
    }
    c.inputs["logical_indices"] = indices;
    c.inputs["block_table"] = pages.table;
    c.inputs["token_to_req"] = from_integers(index, batch.token_to_req);
    plant_nonfinite(c, hostile);
    c.shape += " T=" + std::to_string(width);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const Tensor& indices = c.inputs.at("logical_indices");
    const Tensor& table = c.inputs.at("block_table");
    const Tensor& k = c.inputs.at("k_cache");
    const std::vector<int64_t> requests = integers_of(c.inputs.at("token_to_req"));
    const int64_t width = indices.shape[1], page = k.shape[1];
    std::vector<int64_t> positions(requests.size(), -1);  // of a row that lists tokens: 0
    std::map<int64_t, std::set<int64_t>> used;
    int64_t dead = 0, outside = 0;
    std::string first_dead, first_outside;
    for (size_t i = 0; i < requests.size(); ++i)
      for (int64_t t = 0; t < width; ++t) {
        const int64_t token = indices.integer(int64_t(i) * width + t);
        if (token < 0) continue;
        positions[i] = 0;
        if (requests[i] < 0 || requests[i] >= table.shape[0]) continue;
        const std::string where = "row " + std::to_string(i) + ", token " + std::to_string(token);
        if (token / page >= table.shape[1]) {
          if (outside++ == 0) first_outside = where;
          continue;
        }
        used[requests[i]].insert(token / page);
        const int64_t id = table.integer(requests[i] * table.shape[1] + token / page);
        if ((id < 0 || id >= k.shape[0]) && dead++ == 0)
          first_dead = where + ", page " + std::to_string(id);
      }
    note_requests(out, requests, positions, table.shape[0]);
    note_pages(out, "block_table", table, k.shape[0], used);
    if (dead)
      out.push_back(std::to_string(dead) + " listed tokens are on a page outside [0," +
                    std::to_string(k.shape[0]) + ") (first: " + first_dead + "); masked");
    if (outside)
      out.push_back(std::to_string(outside) + " listed tokens are beyond the block table's " +
                    std::to_string(table.shape[1] * page) + " (first: " + first_outside +
                    "); masked");
    return out;
  }

  std::vector<std::string_view> row_inputs() const override {
    return {"q", "logical_indices", "token_to_req"};
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    const Shape& q = c.inputs.at("q").shape;
    const int64_t dim = output == "lse" ? 1 : q[2], head = linear / dim % q[1],
                  row = linear / dim / q[1];
    const std::vector<LiveToken> live = live_tokens(c, row);
    std::string text = "row " + std::to_string(row) + " (request " +
                       std::to_string(c.inputs.at("token_to_req").integer(row)) + "), head " +
                       std::to_string(head) + " (KV head " +
                       std::to_string(head / (q[1] / c.inputs.at("k_cache").shape[2])) + ")";
    if (output != "lse") text += ", dim " + std::to_string(linear % dim);
    if (live.empty()) return text + ", no live token";
    return text + ", " + std::to_string(live.size()) + " live tokens, the first " +
           std::to_string(live.front().token) + " (page " + std::to_string(live.front().page) +
           ", slot " + std::to_string(live.front().slot) + ")";
  }

  Cost cost(const Case& c) const override {
    const Tensor& q = c.inputs.at("q");
    const Tensor& k = c.inputs.at("k_cache");
    const Tensor& indices = c.inputs.at("logical_indices");
    std::vector<bool> seen(size_t(k.shape[0] * k.shape[1]));
    double attended = 0, unique = 0;
    for (int64_t i = 0; i < q.shape[0]; ++i)
      for (const LiveToken& t : live_tokens(c, i)) {
        ++attended;
        if (seen[size_t(t.page * k.shape[1] + t.slot)]) continue;
        seen[size_t(t.page * k.shape[1] + t.slot)] = true;
        ++unique;
      }
    const double row = 2.0 * double(k.shape[2]) * double(k.shape[3]) * toolkit::bytes_of(k.dtype);
    return {unique * row + 2.0 * double(q.count()) * toolkit::bytes_of(q.dtype) +
                double(indices.count()) * toolkit::bytes_of(indices.dtype),
            4.0 * attended * double(q.shape[1]) * double(q.shape[2])};
  }

  std::vector<Fault> faults() const override {
    return {
        {"last-token-lost", "the last live token of the shortest row is not attended to",
         [](const Case& c, TensorMap& out) { return lose(c, out, 1); }},
        {"tile-of-16-lost", "16 live tokens of the shortest row that has more are not attended to",
         [](const Case& c, TensorMap& out) { return lose(c, out, 16); }},
        {"scale-missing", "scores are not multiplied by D^-0.5",
         [](const Case& c, TensorMap& out) {
           if (shortest_row(c, 2) < 0) return false;
           Case changed = c;
           Tensor q = c.inputs.at("q").packed();
           for (int64_t i = 0; i < q.count(); ++i)
             q.set_real(i, q.real(i) * std::sqrt(double(q.shape[2])));
           replace(changed, "q", q);
           const Tensor before = out.at("output").packed();
           plant_result_of(changed, out);
           return differs(before, out.at("output"));  // equal weights hide it
         }},
        {"heads-rotated", "each head holds its neighbour's output",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("output");
           if (t.shape[1] < 2 || shortest_row(c, 2) < 0) return false;
           const Tensor before = t.packed();
           const int64_t row = t.shape[1] * t.shape[2];
           for (int64_t i = 0; i < t.count(); ++i)
             t.set_real(i, before.real(i / row * row + (i % row + t.shape[2]) % row));
           return differs(before, t);
         }},
        {"one-nan", "one element is NaN",
         [](const Case& c, TensorMap& out) {
           const int64_t row = shortest_row(c, 1);
           if (row < 0) return false;
           Tensor& t = out.at("output");
           t.set_real((row + 1) * t.shape[1] * t.shape[2] - 1, NAN);
           return true;
         }},
        {"one-row-zero", "a row with live tokens is all zeros",
         [](const Case& c, TensorMap& out) {
           const int64_t row = shortest_row(c, 1);
           if (row < 0) return false;
           Tensor& t = out.at("output");
           for (int64_t i = 0; i < t.shape[1] * t.shape[2]; ++i)
             t.set_real(row * t.shape[1] * t.shape[2] + i, 0);
           return true;
         }},
    };
  }

 private:
  static bool differs(const Tensor& a, const Tensor& b) {
    for (int64_t i = 0; i < a.count(); ++i)
      if (a.real(i) != b.real(i)) return true;
    return false;
  }

  static Tensor selection_of(const Axes& axes, const Batch& batch, const Random& random) {
    const int64_t width = axes.integer("width", 1), ratio = axes.integer("ratio", 1),
                  leading = axes.integer("leading", 0, width - 1);
    SelectionShape s;
    for (const int64_t p : batch.query_positions) s.candidates.push_back((p + 1) / ratio);
    s.group = batch.token_to_req;
    s.width = std::max<int64_t>(1, (width - leading - (ratio - 1)) / ratio);
    s.jaccard = axes.number("overlap", 0, 1);
    s.duplicates = axes.integer("duplicates");
    s.holes = axes.integer("holes");
    s.ascending = axes.flag("ascending");
    s.dtype = TK_I64;
    const Tensor groups = make_selection(s, random.stream("selection"));
    std::vector<int64_t> tokens(size_t(batch.rows() * width), -1);
    for (int64_t i = 0; i < batch.rows(); ++i) {
      int64_t column = i * width + leading;
      const int64_t end = (i + 1) * width;
      for (int64_t g = 0; g < s.width; ++g)
        if (g < s.candidates[size_t(i)])
          for (int64_t j = 0; j < ratio && column < end; ++j) {
            const int64_t group = groups.integer(i * s.width + g);
            tokens[size_t(column++)] = group < 0 ? -1 : group * ratio + j;
          }
      const int64_t position = batch.query_positions[size_t(i)];
      for (int64_t t = s.candidates[size_t(i)] * ratio; t <= position && column < end; ++t)
        tokens[size_t(column++)] = t;
    }
    return from_integers(axes.dtype("index", toolkit::kIndex), tokens, {batch.rows(), width});
  }

  // A NaN or inf in the first row's last live token, or in a query.
  static void plant_nonfinite(Case& c, const std::string& hostile) {
    if (c.inputs.at("q").shape[0] == 0) return;
    if (hostile == "nan-query") c.inputs.at("q").set_real(0, NAN);
    if (hostile != "nan-key" && hostile != "inf-value") return;
    const std::vector<LiveToken> live = live_tokens(c, 0);
    if (live.empty()) return;
    Tensor& t = c.inputs.at(hostile == "nan-key" ? "k_cache" : "v_cache");
    const int64_t row = live.back().page * t.shape[1] + live.back().slot;
    t.set_real(row * t.shape[2] * t.shape[3] + 1, hostile == "nan-key" ? NAN : INFINITY);
  }

  // The row with the fewest live tokens, at least `least`, that is finite enough to be judged in
  // full; -1: none.
  static int64_t shortest_row(const Case& c, size_t least) {
    const Tensor& k = c.inputs.at("k_cache");
    const Tensor& v = c.inputs.at("v_cache");
    int64_t best = -1;
    size_t fewest = 0;
    for (int64_t i = 0; i < c.inputs.at("q").shape[0]; ++i) {
      const std::vector<LiveToken> live = live_tokens(c, i);
      if (live.size() < least || (best >= 0 && live.size() >= fewest)) continue;
      const int64_t row = k.shape[2] * k.shape[3];
      const bool finite = std::all_of(live.begin(), live.end(), [&](const LiveToken& t) {
        for (int64_t d = 0; d < row; ++d) {
          const int64_t at = (t.page * k.shape[1] + t.slot) * row + d;
          if (!std::isfinite(k.real(at)) || !std::isfinite(v.real(at))) return false;
        }
        return true;
      });
      if (!finite) continue;
      best = i;
      fewest = live.size();
    }
    return best;
  }

  static bool lose(const Case& c, TensorMap& out, size_t count) {
    const int64_t row = shortest_row(c, count > 1 ? count + 1 : 1);
    if (row < 0) return false;
    const std::vector<LiveToken> live = live_tokens(c, row);
    Case changed = c;
    Tensor indices = c.inputs.at("logical_indices").packed();
    for (size_t i = 0; i < count; ++i)
      indices.set_integer(row * indices.shape[1] + live[live.size() - 1 - i].column, -1);
    replace(changed, "logical_indices", indices);
    plant_result_of(changed, out);
    return true;
  }
};

HARNESS_CARD(AttendCard)

}  // namespace
}  // namespace harness
