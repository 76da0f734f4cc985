// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/axes.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "harness/ops/names.h"

namespace harness {

namespace {

std::vector<std::string> names_of(std::span<const Axis> axes) {
  std::vector<std::string> names;
  for (const Axis& a : axes) names.emplace_back(a.name);
  return names;
}

}  // namespace

Axes::Axes(std::string_view op, std::span<const Axis> axes, const Coordinates& at)
    : op_(op), axes_(axes), at_(at) {
  for (const auto& [name, value] : at) {
    bool known = false;
    for (const Axis& a : axes) known = known || a.name == name;
    if (known) continue;
    std::string all;
    for (const Axis& a : axes) all += (all.empty() ? "" : ", ") + std::string(a.name);
    throw std::invalid_argument(std::string(op) + ": unknown axis '" + name + "'" +
                                nearest_hint(name, names_of(axes)) + "; axes: " + all);
  }
}

void Axes::refuse(std::string_view axis, std::string expected, std::string got) const {
  throw std::invalid_argument(std::string(op_) + ": axis " + std::string(axis) + ": expected " +
                              expected + ", got '" + got + "'");
}

std::string Axes::word(std::string_view axis) const {
  if (const auto it = at_.find(axis); it != at_.end()) return it->second;
  for (const Axis& a : axes_)
    if (a.name == axis) return std::string(a.default_value);
  throw std::logic_error(std::string(op_) + ": the card reads axis '" + std::string(axis) +
                         "', which it does not list");
}

std::string Axes::word(std::string_view axis,
                       std::initializer_list<std::string_view> allowed) const {
  const std::string got = word(axis);
  std::string list;
  for (const std::string_view w : allowed) {
    if (w == got) return got;
    list += (list.empty() ? "" : ", ") + std::string(w);
  }
  refuse(axis, "one of " + list, got);
}

std::vector<int64_t> Axes::integers(std::string_view axis, int64_t lowest) const {
  const std::string text = word(axis);
  const std::string expected = "integers >= " + std::to_string(lowest) + " separated by commas";
  std::vector<int64_t> out;
  for (const char* p = text.c_str();; ++p) {
    char* end = nullptr;
    errno = 0;
    const long long v = std::strtoll(p, &end, 10);
    if (end == p || errno || (*end && *end != ',') || v < lowest) refuse(axis, expected, text);
    out.push_back(v);
    if (!*end) return out;
    p = end;
  }
}

int64_t Axes::integer(std::string_view axis, int64_t lowest, int64_t highest) const {
  const std::string text = word(axis);
  std::string expected = "an integer >= " + std::to_string(lowest);
  if (highest != std::numeric_limits<int64_t>::max())
    expected += " and <= " + std::to_string(highest);
  char* end = nullptr;
  errno = 0;
  const long long v = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || errno || v < lowest || v > highest) refuse(axis, expected, text);
  return v;
}

double Axes::number(std::string_view axis, double lowest, double highest) const {
  const std::string text = word(axis);
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(v >= lowest && v <= highest))
    refuse(axis, "a number of [" + std::to_string(lowest) + ", " + std::to_string(highest) + "]",
           text);
  return v;
}

bool Axes::flag(std::string_view axis) const {
  const std::string v = word(axis, {"0", "1", "false", "true"});
  return v == "1" || v == "true";
}

tk_dtype Axes::dtype(std::string_view axis, toolkit::DtypeSet allowed) const {
  const std::string text = word(axis);
  const tk_dtype d = toolkit::dtype_named(text);
  if (d == 0 || !(allowed & toolkit::set_of(d))) refuse(axis, toolkit::names_of(allowed), text);
  return d;
}

Coordinates parse_coordinates(std::string_view text) {
  Coordinates out;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view part = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw std::invalid_argument("coordinate '" + std::string(part) + "': expected axis=value");
    if (!out.emplace(part.substr(0, equals), part.substr(equals + 1)).second)
      throw std::invalid_argument("axis '" + std::string(part.substr(0, equals)) +
                                  "' is given twice");
  }
  return out;
}

std::string case_id(std::string_view op, std::string_view entry, std::span<const Axis> axes,
                    const Coordinates& at) {
  std::string id = std::string(op) + "/" + std::string(entry);
  char separator = ':';
  for (const Axis& a : axes)
    if (const auto it = at.find(a.name); it != at.end()) {
      id += separator + std::string(a.name) + "=" + it->second;
      separator = ',';
    }
  return id;
}

}  // namespace harness
