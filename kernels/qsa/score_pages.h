// SPDX-License-Identifier: Apache-2.0
// What score_sm_90.cu, which alone includes this, serves, and its parameters. Host and device.
#pragma once

#include <algorithm>

#include "device/device.h"
#include "qsa/divider.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kKeys = 16;  // of a step: a page holds whole steps
constexpr int kHeads = 4;

// Strides in elements. What has 32 bits here was looked at by refusal(); a negative id is a large
// one.
struct PagesParams {
  const uint16_t *q, *keys;
  const uint32_t *table, *request_of, *positions, *lengths;
  float* logits;
  uint32_t* visible;
  uint32_t rows, requests, columns, width, pages, page_size;
  uint32_t q_row, q_head, page_stride, table_row, table_column, request_stride, position_stride,
      length_stride, logits_row, visible_stride;
  Divider by_page_size, by_ratio, by_rows_of_request;
  float inverse;
  uint32_t zero;
  bool fill;
};

// No stride is negative, and no element lies beyond 31 bits.
template <int kRank>
bool spans_31_bits(const Tensor<kRank>& t) {
  int64_t last = 0;
  for (int d = 0; d < kRank; ++d) {
    if (t.stride[d] < 0 || t.size[d] > INT32_MAX || t.stride[d] > INT32_MAX) return false;
    last += std::max<int64_t>(t.size[d] - 1, 0) * t.stride[d];
    if (last > INT32_MAX) return false;
  }
  return true;
}

// Why this kernel does not serve a call, or null.
const char* refusal(const ScoreParams& p) {
  const int64_t dims = p.q.size[2], rows = p.q.size[0], requests = p.page_table.size[0];
  if (!device::hopper_or_later()) return "it copies in bulk, which GPUs do from sm_90 on";
  if (rows > 4 * requests) return "it serves up to 4 rows a request";
  if (p.q.size[1] != kHeads || (dims != 64 && dims != 128))
    return "it serves 4 heads of 64 or 128 elements";
  if (p.q.dtype != p.k_cache.dtype || p.q.dtype == TK_F32)
    return "it serves queries and keys that are both bf16 or both f16";
  if (!dense_runs(p.q, 16) || !dense_runs(p.k_cache, 16) || !dense_runs(p.logits, 16))
    return "queries, keys and logits have to be dense and aligned to 16 bytes";
  if (p.k_cache.size[1] % kKeys != 0 || p.k_cache.stride[1] != dims)
    return "pages have to be dense and of a multiple of 16 keys";
  for (const tk_dtype id :
       {p.page_table.dtype, p.token_to_req.dtype, p.positions.dtype, p.lengths.dtype})
    if (id != TK_I32) return "it serves ids of 32 bits";
  if (!spans_31_bits(p.q) || !spans_31_bits(p.page_table) || !spans_31_bits(p.token_to_req) ||
      !spans_31_bits(p.positions) || !spans_31_bits(p.lengths) || !spans_31_bits(p.visible) ||
      p.k_cache.size[0] > INT32_MAX || p.k_cache.size[1] > INT32_MAX / dims ||
      p.k_cache.stride[0] < 0 || p.k_cache.stride[0] > INT32_MAX || p.logits.stride[0] < 0 ||
      p.logits.stride[0] > INT32_MAX || p.ratio > INT32_MAX || p.logits.size[1] > INT32_MAX / 4)
    return "it takes sizes and strides of up to 31 bits";
  const float inverse = 1.0f / p.divisor;
  if (!(inverse >= 0x1p-126f && inverse <= 0x1p126f)) return "the divisor has no inverse in fp32";
  return nullptr;
}

PagesParams narrow(const ScoreParams& p) {
  const auto u = [](int64_t x) { return uint32_t(x); };
  const int64_t rows = p.q.size[0], requests = p.page_table.size[0];
  return {static_cast<const uint16_t*>(p.q.data),
          static_cast<const uint16_t*>(p.k_cache.data),
          static_cast<const uint32_t*>(p.page_table.data),
          static_cast<const uint32_t*>(p.token_to_req.data),
          static_cast<const uint32_t*>(p.positions.data),
          static_cast<const uint32_t*>(p.lengths.data),
          static_cast<float*>(p.logits.data),
          static_cast<uint32_t*>(p.visible.data),
          u(rows),
          u(requests),
          u(p.logits.size[1]),
          u(p.page_table.size[1]),
          u(p.k_cache.size[0]),
          u(p.k_cache.size[1]),
          u(p.q.stride[0]),
          u(p.q.stride[1]),
          u(p.k_cache.stride[0]),
          u(p.page_table.stride[0]),
          u(p.page_table.stride[1]),
          u(p.token_to_req.stride[0]),
          u(p.positions.stride[0]),
          u(p.lengths.stride[0]),
          u(p.logits.stride[0]),
          u(p.visible.stride[0]),
          Divider(u(p.k_cache.size[1])),
          Divider(u(p.ratio)),
          Divider(u((rows + requests - 1) / requests)),
          1 / p.divisor,
          0,
          p.fill};
}

}  // namespace
}  // namespace qsa
