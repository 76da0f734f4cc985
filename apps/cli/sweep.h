// SPDX-License-Identifier: Apache-2.0
// Axis values of the command line: "rows=1,7", "ctx=1024:8192:*2", "rows=1:9:+4", "lens=[5,7,9]"
// (brackets keep commas in one value).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/ops/card.h"

namespace cli {

struct Sweep {
  std::string axis;
  std::vector<std::string> values;
};

Sweep parse_sweep(std::string_view text);  // throws harness::BadRequest

// Every combination, the last sweep running fastest; on top of `base`.
std::vector<harness::Coordinates> combine(const harness::Coordinates& base,
                                          const std::vector<Sweep>& sweeps);

// "rows=4" or "lens=[5,7,9]": what parse_sweep reads back as exactly this value.
std::string axis_text(std::string_view axis, std::string_view value);

}  // namespace cli
