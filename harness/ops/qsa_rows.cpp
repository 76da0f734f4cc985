// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/qsa_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace harness {

Batch batch_of(const Axes& axes, const Random& random) {
  BatchShape s;
  s.kind = axes.word("batch", {"decode", "speculative", "prefill", "chunked", "mixed"});
  s.requests = axes.integer("requests", 0);
  s.rows_per_request = axes.integer("rows", 1);
  s.context = axes.integer("ctx", 0);
  s.ragged = axes.flag("ragged");
  s.padding_rows = axes.integer("padding", 0);
  return make_batch(s, random);
}

std::vector<int64_t> integers_of(const Tensor& t) {
  std::vector<int64_t> out(static_cast<size_t>(t.count()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = t.integer(int64_t(i));
  return out;
}

int64_t scalar_integer(const Case& c, std::string_view name) {
  const auto it = c.scalars.find(name);
  if (it == c.scalars.end())
    throw std::logic_error("scalar " + std::string(name) + " is missing (the case is checked)");
  return std::stoll(it->second);
}

std::string rows_text(const Batch& batch) {
  return "R=" + std::to_string(batch.rows()) + " N=" + std::to_string(batch.requests());
}

int64_t page_of(const Tensor& table, int64_t request, int64_t token, int64_t page_size,
                int64_t pages) {
  if (request < 0 || request >= table.shape[0] || token < 0 || token / page_size >= table.shape[1])
    return -1;
  const int64_t id = table.integer(request * table.shape[1] + token / page_size);
  return id >= 0 && id < pages ? id : -1;
}

std::vector<RowView> row_views(const Case& c) {
  const std::vector<int64_t> requests = integers_of(c.inputs.at("token_to_req")),
                             positions = integers_of(c.inputs.at("query_positions")),
                             lengths = integers_of(c.inputs.at("sequence_lengths"));
  const int64_t ratio = scalar_integer(c, "compress_ratio");
  std::vector<RowView> rows;
  for (size_t i = 0; i < requests.size(); ++i) {
    RowView v{requests[i], positions[i], 0, 0};
    if (v.request >= 0 && v.request < int64_t(lengths.size()))
      v.length = lengths[size_t(v.request)];
    const int64_t groups =
        v.position < 0 ? 0 : v.position / ratio + (v.position % ratio == ratio - 1);
    v.visible = std::max<int64_t>(0, std::min(groups, v.length / ratio));
    rows.push_back(v);
  }
  return rows;
}

void note_requests(std::vector<std::string>& out, const std::vector<int64_t>& requests,
                   const std::vector<int64_t>& positions, int64_t count) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] >= 0 && requests[i] < count) continue;
    if (i < positions.size() && positions[i] < 0) continue;
    if (bad++ == 0) first = i;
  }
  if (bad == 0) return;
  out.push_back(std::to_string(bad) + (bad == 1 ? " row names a request" : " rows name a request") +
                " outside [0," + std::to_string(count) + ") (first: row " + std::to_string(first) +
                ", request " + std::to_string(requests[first]) + "); treated as padding");
}

void note_positions(std::vector<std::string>& out, const std::vector<RowView>& rows) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].length > 0 && rows[i].position >= rows[i].length && bad++ == 0) first = i;
  if (bad == 0) return;
  out.push_back(std::to_string(bad) + (bad == 1 ? " row stands" : " rows stand") +
                " beyond the length of the request (first: row " + std::to_string(first) +
                ", position " + std::to_string(rows[first].position) + ", length " +
                std::to_string(rows[first].length) + ")");
}

void note_pages(std::vector<std::string>& out, std::string_view name, const Tensor& table,
                int64_t pages, const std::map<int64_t, std::set<int64_t>>& used) {
  size_t all = 0, bad = 0, requests = 0;
  std::string per_request;
  for (const auto& [request, columns] : used) {
    size_t here = 0;
    std::string example;
    for (const int64_t column : columns) {
      ++all;
      const int64_t id = table.integer(request * table.shape[1] + column);
      if (id >= 0 && id < pages) continue;
      if (here++ == 0)
        example = "column " + std::to_string(column) + " holds " + std::to_string(id);
    }
    bad += here;
    if (here == 0) continue;
    if (++requests <= 4)
      per_request += (per_request.empty() ? "" : "; ") + std::string("request ") +
                     std::to_string(request) + ": " + std::to_string(here) + ", " + example;
  }
  if (bad == 0) return;
  if (requests > 4) per_request += "; and " + std::to_string(requests - 4) + " more requests";
  out.push_back(std::to_string(bad) + " of " + std::to_string(all) + " used " + std::string(name) +
                " entries are outside [0," + std::to_string(pages) + ") (" + per_request + ")");
}

void plant_result_of(const Case& changed, TensorMap& outputs) {
  const Card* card = find_card(changed.op);
  const HostCall call(changed);
  const reference::Result result =
      reference::find(changed.op)(toolkit::Args(card->contract(), call.call()));
  for (auto& [name, tensor] : outputs) {
    const auto it = result.outputs.find(name);
    if (it == result.outputs.end()) continue;
    const reference::Output& o = it->second;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      if (!o.judged.empty() && !o.judged[size_t(i)]) continue;
      if (!o.integer.empty())
        tensor.set_integer(i, o.integer[size_t(i)]);
      else if (!o.value.empty())
        tensor.set_real(i, o.value[size_t(i)]);
    }
  }
}

void replace(Case& c, std::string_view input, const Tensor& t) {
  c.inputs.insert_or_assign(std::string(input), t);
}

bool plant_nan(Tensor& t) {
  if (t.count() == 0) return false;
  t.set_real(0, std::numeric_limits<double>::quiet_NaN());
  return true;
}

}  // namespace harness
