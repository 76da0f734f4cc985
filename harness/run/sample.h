// SPDX-License-Identifier: Apache-2.0
// Some rows of a large case, taken out of it: the oracle of a prefill takes half a minute, that of
// 64 of its rows none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

struct RowSample {
  std::vector<int64_t> rows;  // ascending; the first and the last are always among them
  int64_t all = 0;            // rows of the whole case
  Case made;                  // these rows alone, without results
};

// `rows` rows of the case, drawn from its seed; none where it has no more than that, or where its
// op can only be judged as a whole (Card::row_inputs).
std::optional<RowSample> sample_rows(const Card& card, const Case& made, int64_t rows);

// The sampled rows of results of the whole case.
TensorMap rows_of(const RowSample& sample, const TensorMap& results);

// A judge of the sample counts its rows; here "row 3" and "batch 3" become what they are in the
// whole case.
std::string with_own_rows(const RowSample& sample, const std::string& text);

// Of the rows that are not judged: how many hold an element that was never written (real outputs),
// and the first.
struct Unwritten {
  int64_t rows = 0, first = -1;
  std::string output;
};
Unwritten unwritten_rows(const RowSample& sample, const TensorMap& results);

}  // namespace harness
