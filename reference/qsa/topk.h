// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

// The k best of a row's scores, ascending by column: +inf > finite > -inf > NaN, -0.0 equals +0.0,
// ties to the lower column. All columns where there are at most k.
std::vector<int64_t> best_columns(const std::vector<double>& scores, int64_t k);

}  // namespace reference
