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

// groups_in() without a division of 64 bits where 31 bits hold the tokens.
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

// By all lanes of a wave: the columns of their blocks. A lane's is the i-th; `block` is any value,
// and of no meaning for i >= k. Lanes write neighbouring columns: each its own block's would take
// `ratio` times the stores of sectors. Index is unsigned and holds the width.
template <class Index>
DEVICE_FUNCTION void write_groups(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
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
  const int32_t token = int32_t(first), live = int32_t(larger(smaller(count, e.length - first), 0));
  const int64_t column = int64_t(i - Index(device::lane())) * p.ratio;  // of the wave
  const int64_t columns = smaller(p.ratio * device::kWave, p.indices.size[1] - column);
  DEVICE_ROLLED
  for (int64_t from = 0; from < columns; from += device::kWave) {
    const Index at = Index(from) + Index(device::lane());
    const Index group = sizeof(Index) == 4 ? p.by_ratio(uint32_t(at)) : at / Index(p.ratio);
    const int of = int(smaller(group, device::kWave - 1));
    const int32_t o = int32_t(at - group * Index(p.ratio));
    const int32_t begin = device::shuffle(token, of), exist = device::shuffle(live, of);
    if (int64_t(at) < columns)
      *element<int32_t>(p.indices, row, column + int64_t(at)) = o < exist ? begin + o : -1;
  }
}

// By all threads of the block. block(i): the i-th of k blocks.
template <class Index, class Block>
DEVICE_FUNCTION void write_tokens(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
                                  const Block& block) {
  DEVICE_ROLLED
  for (Index i = Index(device::thread()); int64_t(i - Index(device::lane())) <= k;
       i += Index(device::threads()))
    write_groups(p, row, e, k, i, int64_t(i) < k ? block(i) : -1);
}

}  // namespace qsa
