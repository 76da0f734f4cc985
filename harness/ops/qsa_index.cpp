// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/qsa_index.h"

#include <algorithm>
#include <limits>

namespace harness {

namespace {

void corrupt(const std::string& hostile, Batch& batch, PageTable& pages) {
  const bool all = hostile == "all";
  if (all || hostile == "requests")
    for (int64_t i = 1; i < batch.rows(); i += 3)
      batch.token_to_req[size_t(i)] = i % 2 ? batch.requests() + i : -1 - i;
  if (all || hostile == "positions")
    for (int64_t i = 2; i < batch.rows(); i += 3)
      batch.query_positions[size_t(i)] += i % 2 ? 1000 : -100000;
  if (all || hostile == "pages") {
    const int64_t bad[] = {pages.pages, -1, std::numeric_limits<int32_t>::max(),
                           std::numeric_limits<int32_t>::min()};
    for (int64_t i = 0; i < pages.table.count(); i += 3)
      pages.table.set_integer(i, bad[(i / 3) % 4]);
  }
}

void fill_values(const std::string& values, const Random& random, double scale,
                 const PageTable& pages, Tensor& q, Tensor& k) {
  if (values == "normal") {
    fill_normal(q, random.stream("q"), scale);
    fill_tokens(k, pages, random.stream("k"), scale);
    return;
  }
  const Random rq = random.stream("q");
  for (int64_t i = 0; i < q.count(); ++i)
    q.set_real(i, values == "no-score" ? 1.0 : double(rq.below(uint64_t(i), 3) - 1));
  // The same numbers as fill_tokens would place, cut to -1, 0, 1 (or -1: every dot is below zero).
  fill_tokens(k, pages, random.stream("k"));
  for (size_t r = 0; r < pages.tokens.size(); ++r)
    for (int64_t t = 0; t < pages.tokens[r]; ++t) {
      const int64_t row = pages.row(int64_t(r), t) * k.shape[3];
      for (int64_t d = 0; d < k.shape[3]; ++d) {
        const double v = k.real(row + d);
        k.set_real(row + d, values == "no-score" || v < -0.6 ? -1 : v > 0.6 ? 1 : 0);
      }
    }
}

}  // namespace

void make_index_inputs(Case& c, const Axes& axes, const Random& random) {
  Batch batch = batch_of(axes, random.stream("batch"));
  const int64_t ratio = axes.integer("ratio", 1), heads = axes.integer("heads", 1),
                dim = axes.integer("dim", 1);
  const tk_dtype dtype = axes.dtype("dtype", toolkit::kFloat),
                 index = axes.dtype("index", toolkit::kIndex);
  const std::string hostile =
      axes.word("hostile", {"none", "requests", "positions", "pages", "nan-keys", "all"});
  const bool strided = axes.flag("strided");

  PageTableShape shape;
  for (const int64_t length : batch.sequence_lengths) shape.tokens.push_back(length / ratio);
  shape.page_size = axes.integer("page", 1);
  shape.width = axes.integer("width");
  shape.order = page_order(axes.word("order"));
  shape.unused_entry = axes.integer("unused", std::numeric_limits<int64_t>::min());
  shape.dtype = index;
  if (batch.requests() == 0)
    shape.tokens.push_back(0);  // no rows: the shapes are checked all the same
  PageTable pages = make_page_table(shape, random.stream("pages"));
  CacheShape cache{.dtype = dtype,
                   .pages = pages.pages,
                   .page_size = shape.page_size,
                   .heads = 1,
                   .dim = dim,
                   .layout = cache_layout(axes.word("layout"))};
  Tensor k = make_cache(cache);
  Tensor wide = make_tensor(dtype, {batch.rows(), heads, strided ? dim + 24 : dim});
  fill_poison(wide);
  Tensor q = view(wide, 0, {batch.rows(), heads, dim}, wide.strides);
  fill_values(axes.word("values", {"normal", "zero-ties", "no-score"}), random,
              axes.number("scale", 0, 1e30), pages, q, k);
  if (hostile == "nan-keys" || hostile == "all")
    for (size_t r = 0; r < pages.tokens.size(); ++r)
      for (int64_t t = 1; t < pages.tokens[r]; t += 5)
        for (int64_t d = 0; d < dim; ++d)
          if (t % 2 || d == 0)
            k.set_real(pages.row(int64_t(r), t) * dim + d,
                       std::numeric_limits<double>::quiet_NaN());
  corrupt(hostile, batch, pages);

  if (strided) {  // a table of which every second column is ours
    Tensor twice = make_tensor(index, {pages.table.shape[0], 2 * pages.table.shape[1]});
    fill_integer(twice, 1000000);
    Tensor ours = view(twice, 0, pages.table.shape, {2 * pages.table.shape[1], 2});
    for (int64_t i = 0; i < ours.count(); ++i) ours.set_integer(i, pages.table.integer(i));
    pages.table = ours;
  }
  c.inputs["q"] = q;
  c.inputs["k_cache"] = k;
  c.inputs["page_table"] = pages.table;
  c.inputs["token_to_req"] = from_integers(index, batch.token_to_req);
  c.inputs["query_positions"] = from_integers(index, batch.query_positions);
  c.inputs["sequence_lengths"] =
      from_integers(index, batch.requests() ? batch.sequence_lengths : std::vector<int64_t>{0});
  c.scalars["compress_ratio"] = std::to_string(ratio);
  if (axes.word("divisor") != "0") {
    axes.number("divisor", 1e-30, 1e30);
    c.scalars["score_scale"] = axes.word("divisor");
  }
  c.shape = rows_text(batch) + " H=" + std::to_string(heads) + " D=" + std::to_string(dim) +
            " S=" + std::to_string(shape.page_size) + " C=" + std::to_string(ratio);
}

void note_index_inputs(std::vector<std::string>& out, const Case& c, int64_t columns) {
  const std::vector<RowView> rows = row_views(c);
  const Tensor& table = c.inputs.at("page_table");
  const Tensor& k = c.inputs.at("k_cache");
  const int64_t page = k.shape[1], pages = k.shape[0];
  std::vector<int64_t> requests, positions;
  std::map<int64_t, std::set<int64_t>> used;
  int64_t short_rows = 0, dead_rows = 0, dead_columns = 0;
  std::string first_short, first_dead;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowView& r = rows[i];
    requests.push_back(r.request);
    positions.push_back(r.position);
    if (r.request < 0 || r.request >= table.shape[0]) continue;
    if (r.visible > columns && short_rows++ == 0)
      first_short = "row " + std::to_string(i) + " sees " + std::to_string(r.visible) +
                    " blocks but there are " + std::to_string(columns) + " columns";
    const int64_t visible = std::min(r.visible, columns);
    int64_t dead = 0;
    for (int64_t column = 0; column * page < visible; ++column) {
      if (column < table.shape[1]) used[r.request].insert(column);
      if (page_of(table, r.request, column * page, page, pages) < 0)
        dead += std::min(page, visible - column * page);
    }
    dead_columns += dead;
    if (dead && dead_rows++ == 0)
      first_dead = "row " + std::to_string(i) + ": " + std::to_string(dead) + " of " +
                   std::to_string(visible);
  }
  note_requests(out, requests, positions, table.shape[0]);
  note_positions(out, rows);
  note_pages(out, "page_table", table, pages, used);
  if (dead_rows)
    out.push_back(std::to_string(dead_columns) + " visible columns of " +
                  std::to_string(dead_rows) +
                  " rows score -inf because their page is none (first: " + first_dead + ")");
  if (short_rows)
    out.push_back(first_short +
                  (short_rows > 1 ? "; " + std::to_string(short_rows - 1) + " more rows" : ""));
}

std::string index_place(const Case& c, int64_t row, int64_t column) {
  const RowView r = row_views(c)[size_t(row)];
  const Tensor& k = c.inputs.at("k_cache");
  const int64_t page =
      page_of(c.inputs.at("page_table"), r.request, column, k.shape[1], k.shape[0]);
  return "row " + std::to_string(row) + " (request " + std::to_string(r.request) + ", position " +
         std::to_string(r.position) + "), column " + std::to_string(column) +
         (column >= r.visible ? " (not visible)"
          : page < 0          ? " (no live page)"
                              : " (page " + std::to_string(page) + ", slot " +
                           std::to_string(column % k.shape[1]) + ")");
}

Cost index_cost(const Case& c, int64_t columns) {
  const Tensor& q = c.inputs.at("q");
  const Tensor& k = c.inputs.at("k_cache");
  const double dim = double(q.shape[2]);
  std::map<int64_t, int64_t> keys;  // request -> keys that some row sees
  Cost cost;
  for (const RowView& r : row_views(c)) {
    const int64_t visible = std::min(r.visible, columns);
    keys[r.request] = std::max(keys[r.request], visible);
    cost.flops += 2.0 * double(visible) * double(q.shape[1]) * dim;
  }
  cost.bytes = double(q.count()) * toolkit::bytes_of(q.dtype);
  for (const auto& [request, count] : keys)
    cost.bytes += double(count) * dim * toolkit::bytes_of(k.dtype);
  return cost;
}

}  // namespace harness
