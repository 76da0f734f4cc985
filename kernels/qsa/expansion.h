// SPDX-License-Identifier: Apache-2.0
// What expand writes for a row, whoever knows its blocks: expand.cu reads them from memory, topk.cu
// has just chosen them.
#pragma once

#include "qsa/launches.h"

namespace qsa {

struct Expansion {
  int64_t full;    // blocks that are complete
  int64_t closed;  // the same by the position alone: where the tail begins
  int64_t tail;    // tokens of the group that is still open
  int64_t length;
};

// groups_in() without a division where 31 bits hold the tokens: those of 64 bits, two in a row,
// took a third of expand's time.
DEVICE_FUNCTION int64_t groups_of(const ExpandParams& p, int64_t tokens) {
  if (tokens <= 0) return 0;
  return tokens <= INT32_MAX ? p.by_ratio(uint32_t(tokens)) : tokens / p.ratio;
}

DEVICE_FUNCTION Expansion expansion_of(const ExpandParams& p, int64_t row) {
  const int64_t seen = tokens_through(load_index(p.positions, row));
  // In decode the request mostly has the row's number, so that length does not wait for the
  // request.
  const int64_t guess = row < p.lengths.size[0] ? load_index(p.lengths, row) : 0;
  const int64_t request = load_index(p.token_to_req, row);
  const int64_t length = request == row ? guess : length_of(p.lengths, request);
  const int64_t closed = groups_of(p, seen);
  return {smaller(closed, groups_of(p, length)), closed, seen - closed * p.ratio, length};
}

// The columns of the i-th block, or of what stands there: `block` is any value, and of no meaning
// for i >= k. Index is unsigned and holds the width.
template <class Index>
DEVICE_FUNCTION void write_group(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
                                 Index i, int64_t block) {
  const int64_t chosen = smaller(e.full, k);
  int64_t first = 0, count = 0;  // tokens
  if (int64_t(i) < chosen) {
    // A block at or beyond the length holds no token of it, and its product with the ratio might
    // not fit.
    if (block >= 0 && block < e.length) first = block * p.ratio, count = p.ratio;
  } else if (int64_t(i) == chosen) {
    first = e.closed * p.ratio, count = e.tail;
  }
  count = smaller(count, e.length - first);
  const Index ratio = Index(p.ratio), column = i * ratio;
  int32_t* const to = element<int32_t>(p.indices, row, int64_t(column));
  const Index columns = Index(smaller(p.ratio, p.indices.size[1] - int64_t(column)));
  DEVICE_ROLLED
  for (Index o = 0; o < columns; ++o)
    to[int64_t(o) * p.indices.stride[1]] = int64_t(o) < count ? int32_t(first + int64_t(o)) : -1;
}

// By all threads of the block. block(i): the i-th of k blocks.
template <class Index, class Block>
DEVICE_FUNCTION void write_tokens(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
                                  const Block& block) {
  DEVICE_ROLLED
  for (Index i = Index(device::thread()); i <= Index(k); i += Index(device::threads()))
    write_group(p, row, e, k, i, int64_t(i) < k ? block(i) : -1);
}

}  // namespace qsa
