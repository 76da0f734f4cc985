// SPDX-License-Identifier: Apache-2.0
// Names that people type: the op they mean, and the nearest word where there is none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

// The word with the smallest edit distance, if that is near enough to be meant (a third of its length); else empty.
std::string nearest(std::string_view typed, const std::vector<std::string>& words);
// ", nearest is 'x'" or "": for the end of a message.
std::string nearest_hint(std::string_view typed, const std::vector<std::string>& words);

// "qsa.score" or "score". Unknown: std::invalid_argument with the nearest op; a bare word that two families have names
// both.
const Card& resolve_op(std::string_view typed);

}  // namespace harness
