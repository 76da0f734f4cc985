// SPDX-License-Identifier: Apache-2.0
// What the QSA cards share: axes of a batch, findings about requests, positions and page tables,
// and faults that are planted by asking the oracle about another case.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/generate/axes.h"
#include "harness/generate/batch.h"
#include "harness/generate/fill.h"
#include "harness/generate/paged.h"
#include "harness/generate/selection.h"
#include "harness/ops/card.h"

namespace harness {

inline constexpr Axis kBatchAxes[] = {
    {"batch", "decode", "decode, speculative, prefill, chunked or mixed"},
    {"requests", "4", "requests of the batch"},
    {"rows", "4", "rows per request (decode has one)"},
    {"ctx", "512", "tokens of the longest request"},
    {"ragged", "1", "0: all requests have ctx tokens"},
    {"padding", "0", "rows of request 0 at position -1"},
};
inline constexpr size_t kBatchAxisCount = std::size(kBatchAxes);

// The axes of a batch, then the card's own.
template <size_t N>
constexpr std::array<Axis, kBatchAxisCount + N> with_batch(const Axis (&own)[N]) {
  std::array<Axis, kBatchAxisCount + N> all{};
  for (size_t i = 0; i < kBatchAxisCount; ++i) all[i] = kBatchAxes[i];
  for (size_t i = 0; i < N; ++i) all[kBatchAxisCount + i] = own[i];
  return all;
}
Batch batch_of(const Axes& axes, const Random& random);

std::vector<int64_t> integers_of(const Tensor& t);
int64_t scalar_integer(const Case& c, std::string_view name);
// "R=64 N=4" from the batch.
std::string rows_text(const Batch& batch);

// The row of a paged cache behind a token: page id, or -1 where the table or the cache has none.
int64_t page_of(const Tensor& table, int64_t request, int64_t token, int64_t page_size,
                int64_t pages);

// Groups a row may see: max(0, min((pos+1) div C, len div C)); len 0 where the request is none.
struct RowView {
  int64_t request, position, length, visible;
};
std::vector<RowView> row_views(
    const Case& c);  // of token_to_req, query_positions, sequence_lengths, compress_ratio

// Findings, one line each.
// Rows that have a position but no request (a padding row stands at -1).
void note_requests(std::vector<std::string>& out, const std::vector<int64_t>& requests,
                   const std::vector<int64_t>& positions, int64_t count);
void note_positions(std::vector<std::string>& out, const std::vector<RowView>& rows);
// Entries of `table` in use, per request, that are outside [0,pages).
void note_pages(std::vector<std::string>& out, std::string_view name, const Tensor& table,
                int64_t pages, const std::map<int64_t, std::set<int64_t>>& used);

// The oracle's outputs for `changed`, rounded to what a kernel would write, into `outputs` (only
// those already there).
void plant_result_of(const Case& changed, TensorMap& outputs);
// A tensor with storage of its own, so that a fault cannot change the case.
void replace(Case& c, std::string_view input, const Tensor& t);

// Puts a NaN into the first element, for ops with a real output.
bool plant_nan(Tensor& t);

}  // namespace harness
