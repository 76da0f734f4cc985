// SPDX-License-Identifier: Apache-2.0
// Shapes that a file names ("rows=4 lens=8192*8") and the cases of rows that are they.
#pragma once

#include <string>

#include "harness/ops/card.h"

namespace harness {

// "rows=4 lens=5*3": rows is 4 and lens 5,5,5. Throws std::invalid_argument.
Coordinates shape_coordinates(const std::string& axes);

// The coordinates that a case id holds: "qsa.attend/decode:rows=4,lens=5,33" -> rows=4, lens=5,33.
Coordinates coordinates_of(const std::string& case_id);

// `row` is that case: every coordinate of `wanted` has that value in it, given or by default.
bool is_case(const Card& card, const Coordinates& row, const Coordinates& wanted);

}  // namespace harness
