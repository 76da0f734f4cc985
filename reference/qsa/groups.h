// SPDX-License-Identifier: Apache-2.0
// What a row may see: the group arithmetic that score, expand and select share by contract.
#pragma once

#include <algorithm>
#include <cstdint>

namespace reference {

// (position + 1) div C, the groups that are complete at a position; none below 0.
inline int64_t complete_groups(int64_t position, int64_t c) {
  return position < 0 ? 0 : position / c + (position % c == c - 1 ? 1 : 0);
}
// (position + 1) mod C, the tokens of the group that is still open.
inline int64_t open_tokens(int64_t position, int64_t c) {
  return position < 0 || position % c == c - 1 ? 0 : position % c + 1;
}
// max(0, min((position + 1) div C, length div C)).
inline int64_t visible_groups(int64_t position, int64_t length, int64_t c) {
  return std::max<int64_t>(0, std::min(complete_groups(position, c), length / c));
}

}  // namespace reference
