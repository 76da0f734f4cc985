// SPDX-License-Identifier: Apache-2.0
#include "cli/sweep.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "harness/plugins/errors.h"

namespace cli {

using harness::BadRequest;

namespace {

constexpr size_t kMostValues = 10'000;  // of one axis; more is a typing error

std::optional<int64_t> integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

// "a:b", "a:b:*k" or "a:b:+s"; nothing where the text is no range at all (then it is a plain
// value).
std::optional<std::vector<std::string>> range(std::string_view text) {
  const size_t first = text.find(':');
  if (first == std::string_view::npos) return {};
  const size_t second = text.find(':', first + 1);
  const auto from = integer(text.substr(0, first));
  const auto to = integer(
      text.substr(first + 1, second == std::string_view::npos ? second : second - first - 1));
  if (!from || !to) return {};
  const std::string_view step = second == std::string_view::npos ? "+1" : text.substr(second + 1);
  const auto by = step.size() > 1 ? integer(step.substr(1)) : std::nullopt;
  const bool times = step.starts_with('*');
  if (!by || (!times && !step.starts_with('+')) || *by < (times ? 2 : 1) || (times && *from < 1) ||
      *from > *to)
    throw BadRequest(fmt::format(
        "range '{}': expected from:to, from:to:+step (>= 1) or from:to:*factor (>= 2) with "
        "from <= to",
        text));
  std::vector<std::string> values;
  for (int64_t v = *from; v <= *to;) {
    values.push_back(std::to_string(v));
    if (values.size() > kMostValues)
      throw BadRequest(fmt::format("range '{}' has too many values", text));
    if (times ? v > *to / *by : v > *to - *by) break;
    v = times ? v * *by : v + *by;
  }
  return values;
}

}  // namespace

Sweep parse_sweep(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw BadRequest(
        fmt::format("axis '{}': expected name=value, name=v1,v2 or name=from:to:*2", text));
  Sweep sweep{std::string(text.substr(0, equals)), {}};
  std::string_view rest = text.substr(equals + 1);
  for (bool more = true; more;) {
    std::string_view value;
    if (rest.starts_with('[')) {
      const size_t close = rest.find(']');
      if (close == std::string_view::npos || (close + 1 < rest.size() && rest[close + 1] != ','))
        throw BadRequest(fmt::format("axis '{}': expected ']' and then ',' or the end", text));
      sweep.values.emplace_back(rest.substr(1, close - 1));
      more = close + 1 < rest.size();
      rest.remove_prefix(std::min(close + 2, rest.size()));
      continue;
    }
    const size_t comma = rest.find(',');
    value = rest.substr(0, comma);
    if (value.empty()) throw BadRequest(fmt::format("axis '{}': a value is empty", text));
    if (auto values = range(value))
      sweep.values.insert(sweep.values.end(), values->begin(), values->end());
    else
      sweep.values.emplace_back(value);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  return sweep;
}

std::vector<harness::Coordinates> combine(const harness::Coordinates& base,
                                          const std::vector<Sweep>& sweeps) {
  std::vector<harness::Coordinates> all{base};
  for (const auto& sweep : sweeps) {
    std::vector<harness::Coordinates> next;
    for (const auto& at : all)
      for (const auto& value : sweep.values) {
        next.push_back(at);
        next.back()[sweep.axis] = value;
        if (next.size() > kMostValues) throw BadRequest("the axes make too many combinations");
      }
    all = std::move(next);
  }
  return all;
}

std::string axis_text(std::string_view axis, std::string_view value) {
  const bool plain = value.find_first_of(",:[]") == std::string_view::npos && !value.empty();
  return plain ? fmt::format("{}={}", axis, value) : fmt::format("{}=[{}]", axis, value);
}

}  // namespace cli
