// SPDX-License-Identifier: Apache-2.0
// One output against the oracle's, element by element.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "harness/judge/verdict.h"
#include "harness/tensors/tensor.h"
#include "reference/oracle.h"

namespace harness {

// Names the place of an element in the op's terms; called for the first bad element only.
using Place = std::function<std::string(int64_t linear)>;

// Real outputs: |x - value| <= bound, so that NaN fails; an infinite value has to be met exactly, a NaN by a NaN. Integer
// and byte outputs: exactly. Elements that the oracle does not judge are passed over. Elements that still hold the
// poison of judge/poison.h count as unwritten.
// Throws toolkit::Violation where shape or dtype of `actual` are not the oracle's.
Verdict compare(std::string_view op, std::string_view output, const reference::Output& truth, const Tensor& actual,
                const Place& place);

// "0.25 +- 0.001": numbers in messages, with as many digits as tell two doubles apart where that matters.
std::string number_text(double v);

}  // namespace harness
