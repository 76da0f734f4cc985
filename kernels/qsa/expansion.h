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
  const int64_t length = length_of(p.lengths, load_index(p.token_to_req, row));
  const int64_t closed = groups_of(p, seen);
  return {smaller(closed, groups_of(p, length)), closed, seen - closed * p.ratio, length};
}

// The columns of a row. Index is unsigned and holds the width; of 32 bits, the width is below 2^31.
template <class Index>
struct RowTokens {
  const ExpandParams& p;
  const Expansion& e;
  int64_t row;
  Index from_blocks;  // columns

  DEVICE_FUNCTION RowTokens(const ExpandParams& params, const Expansion& expansion, int64_t at,
                            int64_t k)
      : p(params), e(expansion), row(at), from_blocks(Index(smaller(e.full, k)) * Index(p.ratio)) {}

  DEVICE_FUNCTION static Index block_of(const ExpandParams& p, Index column) {
    if constexpr (sizeof(Index) == 4)
      return p.by_ratio(column);
    else
      return column / Index(p.ratio);
  }
  // block(i): the i-th of k blocks, any value; asked for i < k alone.
  template <class Block>
  DEVICE_FUNCTION void write(Index column, const Block& block) const {
    int64_t token = -1;
    if (column < from_blocks) {
      // A block at or beyond the length holds no token of it, and its product with the ratio might
      // not fit.
      const Index i = block_of(p, column);
      const int64_t b = block(i);
      if (b >= 0 && b < e.length) token = b * p.ratio + int64_t(column - i * Index(p.ratio));
    } else if (int64_t(column - from_blocks) < e.tail) {
      token = e.closed * p.ratio + int64_t(column - from_blocks);
    }
    *element<int32_t>(p.indices, row, int64_t(column)) = token < e.length ? int32_t(token) : -1;
  }
};

// By all threads of the block; block(i) as above.
template <class Index, class Block>
DEVICE_FUNCTION void write_tokens(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
                                  const Block& block) {
  const RowTokens<Index> tokens(p, e, row, k);
  DEVICE_ROLLED
  for (Index j = Index(device::thread()); j < Index(p.indices.size[1]);
       j += Index(device::threads()))
    tokens.write(j, block);
}

}  // namespace qsa
