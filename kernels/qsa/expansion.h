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

DEVICE_FUNCTION Expansion expansion_of(const ExpandParams& p, int64_t row) {
  const int64_t seen = tokens_through(load_index(p.positions, row));
  const int64_t length = length_of(p.lengths, load_index(p.token_to_req, row));
  const int64_t closed = groups_in(seen, p.ratio);
  return {smaller(closed, groups_in(length, p.ratio)), closed, seen - closed * p.ratio, length};
}

// By all threads of the block. block(i): the i-th of k blocks, any value. Index is unsigned and
// holds the width: divisions of 32 bits are several times shorter than those of 64.
template <class Index, class Block>
DEVICE_FUNCTION void write_tokens(const ExpandParams& p, int64_t row, const Expansion& e, int64_t k,
                                  const Block& block) {
  const Index ratio = Index(p.ratio), width = Index(p.indices.size[1]);
  const Index from_blocks = Index(smaller(e.full, k)) * ratio;
  DEVICE_ROLLED
  for (Index j = Index(device::thread()); j < width; j += Index(device::threads())) {
    int64_t token = -1;
    if (j < from_blocks) {
      // A block at or beyond the length holds no token of it, and its product with the ratio might
      // not fit.
      const int64_t b = block(j / ratio);
      if (b >= 0 && b < e.length) token = b * int64_t(ratio) + int64_t(j % ratio);
    } else if (int64_t(j - from_blocks) < e.tail) {
      token = e.closed * int64_t(ratio) + int64_t(j - from_blocks);
    }
    *element<int32_t>(p.indices, row, int64_t(j)) = token < e.length ? int32_t(token) : -1;
  }
}

}  // namespace qsa
