// SPDX-License-Identifier: Apache-2.0
// Random coordinates of an op: the meetings of axes that nobody thought of when the suite was written.
#pragma once

#include "harness/generate/random.h"
#include "harness/ops/card.h"

namespace harness {

// Each axis takes its default or a value that some suite entry gives it, independently of the others; counts (rows,
// tokens, columns, ...) also any number up to the largest of those. The pinned axes keep their values. What makes no case
// is drawn again; std::invalid_argument where a hundred draws made none.
Coordinates draw(const Card& card, const Coordinates& pinned, const Random& random, uint64_t seed);

}  // namespace harness
