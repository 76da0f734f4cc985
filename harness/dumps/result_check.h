// SPDX-License-Identifier: Apache-2.0
// What a case's outputs have to be, before an oracle or a kernel makes them.
#pragma once

#include <string>

#include "harness/ops/card.h"
#include "harness/tensors/case.h"

namespace harness {

// Results that came along have the contract's shape and dtype. `prefix` is how their names begin in
// the file. Throws toolkit::Violation.
void check_results(const Card& card, const Case& made, const TensorMap& results,
                   const std::string& prefix);

// Outputs and what the oracle keeps of them fit the memory that is available here: a scalar of a
// few digits may ask for any size. Throws toolkit::Violation.
void check_room(const Card& card, const Case& made);

}  // namespace harness
