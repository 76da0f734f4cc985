// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace reference {

// One row of expand's result: width k*C + C-1, from k block ids, the row's position and its
// request's length.
std::vector<int64_t> expand_row(const std::vector<int64_t>& blocks, int64_t position,
                                int64_t length, int64_t c);

}  // namespace reference
