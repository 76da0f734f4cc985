// SPDX-License-Identifier: Apache-2.0
// Stage 2 of a split decode, one thread an output element. Base e.
#pragma once

#include "tq/elements.h"

namespace tq {

// Split s of `tokens` covers [begin, end); empty where begin >= end. Ceil lengths: the last splits
// may be empty.
struct SplitRange {
  int64_t begin, end;
};

DEVICE_FUNCTION int64_t split_length(int64_t tokens, int64_t splits) {
  return tokens / splits + (tokens % splits != 0);
}
DEVICE_FUNCTION SplitRange split_range(int64_t tokens, int64_t splits, int64_t split) {
  const int64_t length = split_length(tokens, splits);
  if (tokens <= 0 || split > (tokens - 1) / length) return {0, 0};
  const int64_t begin = split * length;
  return {begin, tokens - begin < length ? tokens : begin + length};
}
DEVICE_FUNCTION int64_t used_splits(int64_t tokens, int64_t splits) {
  return tokens <= 0 ? 0 : (tokens - 1) / split_length(tokens, splits) + 1;
}

struct MergeParams {
  const float* partial;  // [B,Hq,splits,D+1]: normalised output, lse at index D
  int64_t stride[4];
  Strided<1> seq_lens;  // [B]
  int64_t capacity;     // tokens that the page table can hold; a longer sequence ends there
  Strided<3> output;    // [B,Hq,D]
  Strided<2> lse;       // [B,Hq]
  int64_t heads, splits;
  int head_dim;
  int64_t items;  // B * Hq * D
};

DEVICE_FUNCTION void merge_item(const MergeParams& p, int64_t item) {
  const int64_t d = item % p.head_dim, head = item / p.head_dim % p.heads,
                row = item / p.head_dim / p.heads;
  int64_t tokens = load_index(p.seq_lens.data, p.seq_lens.dtype, row * p.seq_lens.stride[0]);
  if (tokens > p.capacity) tokens = p.capacity;
  const int64_t used = used_splits(tokens, p.splits);
  const float* partial = p.partial + row * p.stride[0] + head * p.stride[1];
  const float* lses = partial + p.head_dim * p.stride[3];

  float most = -device::infinity();
  bool broken = false;  // a NaN or +inf lse: the maximum alone would drop the NaN
  for (int64_t s = 0; s < used; ++s) {
    const float lse = lses[s * p.stride[2]];
    broken = broken || device::isnan(lse) || lse == device::infinity();
    most = device::max(most, lse);
  }
  float output = 0, lse = -device::infinity();
  if (broken) {
    output = lse = device::nan();
  } else if (most > -device::infinity()) {
    float sum = 0, total = 0;
    for (int64_t s = 0; s < used; ++s) {
      const float split_lse = lses[s * p.stride[2]];
      if (split_lse == -device::infinity()) continue;  // its partial may be garbage
      const float weight = device::exp(split_lse - most);
      sum += weight * partial[s * p.stride[2] + d * p.stride[3]];
      total += weight;
    }
    output = device::divide(sum, total);
    lse = most + device::log(total);
  }
  store_float(p.output.data, p.output.dtype,
              row * p.output.stride[0] + head * p.output.stride[1] + d * p.output.stride[2],
              output);
  if (d == 0) store_float(p.lse.data, TK_F32, row * p.lse.stride[0] + head * p.lse.stride[1], lse);
}

}  // namespace tq
