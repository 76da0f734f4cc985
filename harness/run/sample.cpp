// SPDX-License-Identifier: Apache-2.0
#include "harness/run/sample.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <regex>

#include "harness/generate/random.h"
#include "harness/judge/poison.h"
#include "harness/tensors/numbers.h"
#include "harness/tensors/walk.h"
#include "reference/parallel.h"

namespace harness {

namespace {

// Row `row` as a tensor of its own, over the same storage.
Tensor row_view(const Tensor& t, int64_t row) {
  Tensor one = t;
  one.offset += row * t.strides[0] * toolkit::bytes_of(t.dtype);
  one.shape[0] = 1;
  return one;
}

Tensor take_rows(const Tensor& t, const std::vector<int64_t>& rows) {
  Shape shape = t.shape;
  shape[0] = int64_t(rows.size());
  Tensor out = make_tensor(t.dtype, shape);
  out.fp8_flavour = t.fp8_flavour;
  const size_t bytes = size_t(row_view(t, 0).count()) * size_t(toolkit::bytes_of(t.dtype));
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(out.data() + i * bytes, row_view(t, rows[i]).packed().data(), bytes);
  return out;
}

std::vector<int64_t> draw_rows(int64_t rows, int64_t all, uint64_t seed) {
  std::vector<int64_t> drawn;
  if (rows > 1) drawn.push_back(0);
  if (rows > 2)
    for (const int64_t row : Random(seed, "judged rows").distinct(rows - 2, all - 2))
      drawn.push_back(row + 1);
  drawn.push_back(all - 1);
  return drawn;
}

}  // namespace

std::optional<RowSample> sample_rows(const Card& card, const Case& made, int64_t rows) {
  const auto names = card.row_inputs();
  if (rows <= 0 || names.empty()) return {};
  const int64_t all = made.inputs.find(names.front())->second.shape[0];
  if (all <= rows) return {};
  RowSample sample{draw_rows(rows, all, made.seed), all, made};
  sample.made.expected.clear();
  sample.made.actual.clear();
  for (const auto name : names) {
    Tensor& t = sample.made.inputs.find(name)->second;
    t = take_rows(t, sample.rows);
  }
  return sample;
}

TensorMap rows_of(const RowSample& sample, const TensorMap& results) {
  TensorMap some;
  for (const auto& [name, t] : results) some.emplace(name, take_rows(t, sample.rows));
  return some;
}

std::string with_own_rows(const RowSample& sample, const std::string& text) {
  static const std::regex named("\\b(row|batch) ([0-9]{1,9})\\b");
  std::string out;
  auto from = text.begin();
  for (std::sregex_iterator it(text.begin(), text.end(), named), end; it != end; ++it) {
    const auto& number = (*it)[2];
    const size_t row = std::stoul(number.str());
    out.append(from, number.first);
    out += row < sample.rows.size() ? std::to_string(sample.rows[row]) : number.str();
    from = number.second;
  }
  return out.append(from, text.end());
}

Unwritten unwritten_rows(const RowSample& sample, const TensorMap& results) {
  Unwritten found;
  for (const auto& [name, t] : results) {
    if (!is_float(t.dtype) || toolkit::bytes_of(t.dtype) < 2) continue;
    std::atomic<int64_t> rows = 0, first = sample.all;
    reference::for_each_row(sample.all, [&](int64_t row) {
      if (std::ranges::binary_search(sample.rows, row)) return;
      bool whole = true;
      walk(row_view(t, row), [&](int64_t, const std::byte* p) {
        whole = !is_output_poison(t.dtype, p);
        return whole;
      });
      if (whole) return;
      ++rows;
      for (int64_t seen = first; row < seen && !first.compare_exchange_weak(seen, row);) continue;
    });
    if (rows > found.rows) found = {rows, first, name};
  }
  return found;
}

}  // namespace harness
