// SPDX-License-Identifier: Apache-2.0
// The side of the compressed cache that score and select share: generator and findings.
#pragma once

#include "harness/ops/qsa_rows.h"

namespace harness {

inline constexpr Axis kIndexAxes[] = {
    {"ratio", "4", "C, tokens per compressed key"},
    {"heads", "4", "index query heads"},
    {"dim", "128", "elements of an index head"},
    {"page", "16", "compressed keys per page (main page / ratio)"},
    {"dtype", "bf16", "bf16, f16 or f32, of queries and keys"},
    {"index", "i32", "i32 or i64, of ids and positions"},
    {"layout", "separate", "memory layout of the cache: separate, padded, halves, interleaved"},
    {"order", "shuffled", "order of physical pages: shuffled, identity, reversed"},
    {"unused", "-1", "page table entries behind a request's last page"},
    {"width", "0", "columns of the page table, 0: just enough"},
    {"strided", "0", "1: queries in wider rows, every second column of a page table twice as wide"},
    {"scale", "1", "standard deviation of queries and keys"},
    {"divisor", "0", "score_scale, 0: sqrt(dim)"},
    {"values", "normal",
     "normal, zero-ties (keys and queries of few small integers), or no-score (all dots below 0)"},
    {"hostile", "none", "none, requests, positions, pages, nan-keys, all"},
};
inline constexpr size_t kIndexAxisCount = std::size(kIndexAxes);

// Batch axes, index axes, then the card's own.
template <size_t N>
constexpr auto with_index(const Axis (&own)[N]) {
  std::array<Axis, kBatchAxisCount + kIndexAxisCount + N> all{};
  for (size_t i = 0; i < kBatchAxisCount; ++i) all[i] = kBatchAxes[i];
  for (size_t i = 0; i < kIndexAxisCount; ++i) all[kBatchAxisCount + i] = kIndexAxes[i];
  for (size_t i = 0; i < N; ++i) all[kBatchAxisCount + kIndexAxisCount + i] = own[i];
  return all;
}

// q, k_cache, page_table, token_to_req, query_positions, sequence_lengths, compress_ratio,
// score_scale.
void make_index_inputs(Case& c, const Axes& axes, const Random& random);
void note_index_inputs(std::vector<std::string>& out, const Case& c, int64_t columns);
// "row 3 (request 1, position 40), column 7 (page 12, slot 3)"
std::string index_place(const Case& c, int64_t row, int64_t column);
Cost index_cost(const Case& c, int64_t columns);

}  // namespace harness
