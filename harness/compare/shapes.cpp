// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/shapes.h"

#include <algorithm>
#include <cstdlib>

#include "harness/generate/axes.h"

namespace harness {

Coordinates shape_coordinates(const std::string& axes) {
  Coordinates at = parse_coordinates(axes);
  for (auto& [axis, value] : at) {
    const size_t star = value.find('*');
    if (star == std::string::npos) continue;
    const std::string one = value.substr(0, star);
    const int count = std::atoi(value.c_str() + star + 1);
    value = one;
    for (int i = 1; i < count; ++i) value += "," + one;
  }
  return at;
}

Coordinates coordinates_of(const std::string& case_id) {
  Coordinates at;
  const size_t colon = case_id.find(':');
  if (colon == std::string::npos) return at;
  std::string* value = nullptr;
  for (size_t from = colon + 1; from <= case_id.size();) {
    const size_t comma = std::min(case_id.find(',', from), case_id.size());
    const std::string word = case_id.substr(from, comma - from);
    from = comma + 1;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      value = &at[word.substr(0, equals)];
      *value = word.substr(equals + 1);
    } else if (value) {  // "lens=5,33" is one coordinate
      *value += "," + word;
    }
  }
  return at;
}

bool is_case(const Card& card, const Coordinates& row, const Coordinates& wanted) {
  return std::ranges::all_of(card.axes(), [&](const Axis& axis) {
    const auto want = wanted.find(axis.name);
    if (want == wanted.end()) return true;
    const auto got = row.find(axis.name);
    return want->second == (got == row.end() ? axis.default_value : got->second);
  });
}

}  // namespace harness
