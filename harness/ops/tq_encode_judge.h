// SPDX-License-Identifier: Apache-2.0
// Judging encoded slots: which bytes would have been right, given those that a kernel wrote.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

// Tokens that want a slot, ascending; slots outside the cache are left out.
std::map<int64_t, std::vector<int64_t>> wanted_slots(const Case& c);

// The cache that a right encoder writes, as near to `actual` as the contract allows: a code that may be another one next to
// a decision point, a norm, scale or zero one f16 unit off, fields of vectors with NaN or inf, and, where several tokens
// want one slot, any of them entire are taken from `actual`. What then still differs is wrong.
struct AcceptedCache {
  reference::Output bytes;
  int64_t nonfinite = 0;        // norm, scale or zero NaN or inf where a number is due
  std::string first_nonfinite;  // "slot 3, head 0: scale"
};
AcceptedCache accepted_cache(const Case& c, const reference::Result& oracle, const Tensor& actual);

}  // namespace harness
