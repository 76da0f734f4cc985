// SPDX-License-Identifier: Apache-2.0
// Reads the coordinates of a case with the defaults of its card's axes. Every refusal is a std::invalid_argument that
// names axis, expected and got.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/ops/card.h"

namespace harness {

class Axes {
 public:
  // Refuses a coordinate that is no axis of the card, with the nearest one.
  Axes(std::string_view op, std::span<const Axis> axes, const Coordinates& at);

  int64_t integer(std::string_view axis, int64_t lowest = 0,
                  int64_t highest = std::numeric_limits<int64_t>::max()) const;
  std::vector<int64_t> integers(std::string_view axis, int64_t lowest = 0) const;  // "5" or "5,7,9"; never empty
  double number(std::string_view axis, double lowest, double highest) const;
  bool flag(std::string_view axis) const;                                          // 0, 1, true, false
  std::string word(std::string_view axis) const;                                   // as it stands
  std::string word(std::string_view axis, std::initializer_list<std::string_view> allowed) const;
  tk_dtype dtype(std::string_view axis, toolkit::DtypeSet allowed) const;

 private:
  [[noreturn]] void refuse(std::string_view axis, std::string expected, std::string got) const;
  std::string_view op_;
  std::span<const Axis> axes_;
  const Coordinates& at_;
};

// "rows=4 ctx=2048" as coordinates (a suite entry's text; separated by spaces).
Coordinates parse_coordinates(std::string_view text);
// "qsa.score/decode:ctx=2048,rows=4": the id of a case of these coordinates, in the card's axis order.
std::string case_id(std::string_view op, std::string_view entry, std::span<const Axis> axes, const Coordinates& at);

}  // namespace harness
