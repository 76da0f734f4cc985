// SPDX-License-Identifier: Apache-2.0
// Selections: which tokens (or blocks) each row attends to, with a given overlap between neighbouring rows.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/generate/random.h"
#include "harness/tensors/tensor.h"

namespace harness {

struct SelectionShape {
  std::vector<int64_t> candidates;  // of each row: it chooses from 0..candidates-1 (R rows)
  std::vector<int64_t> group;       // of each row, e.g. token_to_req: only rows of one group overlap; empty: one group
  int64_t width = 64;               // columns; a row chooses min(width, candidates), the rest is -1
  double jaccard = 0.0;             // |A and B| / |A or B| of a row and the one before it, as near as counts allow
  int64_t duplicates = 0;           // entries per row that repeat another one of the row
  int64_t holes = 0;                // entries per row that become -1, anywhere
  bool ascending = true;            // else in a random order
  tk_dtype dtype = TK_I32;
};

Tensor make_selection(const SelectionShape& shape, const Random& random);  // [R,width]

// Jaccard overlap of two rows of a selection; entries < 0 do not count, repeated ones count once.
double jaccard_of(const Tensor& selection, int64_t row, int64_t other);

}  // namespace harness
