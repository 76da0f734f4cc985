// SPDX-License-Identifier: Apache-2.0
// The raw keys of a step and the ring of older ones, that compress and step share.
#pragma once

#include "harness/ops/qsa_rows.h"

namespace harness {

struct RingShape {
  int64_t ratio = 4, dim = 128, ring = 8;
  int64_t stride = 0;              // elements from row to row of raw_keys, 0: dense
  std::string positions = "text";  // text: all axes the same, by stride 0; mrope: three axes;
                                   // transposed: [3,R] seen as [R,3]
  bool rope = false;               // a rope_cache for the ring's positions
  tk_dtype dtype = TK_BF16, index = TK_I64;
};

struct RingInputs {
  Tensor raw_keys, raw_positions, state, table, rope;
};
// The ring holds the last `ring` keys before each request's first row of this step; all else in it
// is poison.
RingInputs make_ring_inputs(const RingShape& shape, const Batch& batch, const Random& random);

// The numbers of a key at a position of a request: the same whether it sits in the ring or among
// this step's rows.
double raw_key(const Random& random, int64_t request, int64_t position, int64_t d);

}  // namespace harness
