// SPDX-License-Identifier: Apache-2.0
// The main K/V cache side that attend and step share.
#pragma once

#include "harness/ops/qsa_rows.h"

namespace harness {

inline constexpr Axis kKvAxes[] = {
    {"heads", "24", "query heads"},
    {"kv", "2", "KV heads"},
    {"dim", "256", "elements of a head, a multiple of 8"},
    {"page", "16", "tokens per page"},
    {"dtype", "bf16", "bf16 or f16, of queries, keys and values"},
    {"layout", "separate",
     "memory layout of K and V: separate, halves, interleaved, head_major, padded"},
    {"order", "shuffled", "order of physical pages: shuffled, identity, reversed"},
    {"unused", "-1", "block table entries behind a request's last page"},
    {"scale", "1", "standard deviation of the queries; 4 makes peaked weights"},
    {"values", "normal",
     "normal, or probe: keys 0 (equal weights), values tell token and dim apart"},
};
inline constexpr size_t kKvAxisCount = std::size(kKvAxes);

template <size_t N>
constexpr auto with_kv(const Axis (&own)[N]) {
  std::array<Axis, kBatchAxisCount + kKvAxisCount + N> all{};
  for (size_t i = 0; i < kBatchAxisCount; ++i) all[i] = kBatchAxes[i];
  for (size_t i = 0; i < kKvAxisCount; ++i) all[kBatchAxisCount + i] = kKvAxes[i];
  for (size_t i = 0; i < N; ++i) all[kBatchAxisCount + kKvAxisCount + i] = own[i];
  return all;
}

// `prefix`q, k_cache, v_cache for every token of the batch's requests; the block table is returned.
PageTable make_kv_inputs(Case& c, const std::string& prefix, const Axes& axes, const Batch& batch,
                         tk_dtype index, const Random& random);

}  // namespace harness
