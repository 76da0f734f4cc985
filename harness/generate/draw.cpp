// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/draw.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/generate/axes.h"

namespace harness {

namespace {

// Axes that count something, so that every number up to the suite's largest is as good as the suite's.
constexpr std::string_view kCounts[] = {"requests", "rows",  "ctx",     "batch", "tokens",
                                        "columns",  "width", "visible", "k",     "winners"};

std::optional<int64_t> whole(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return n;
}

// What the suite gives an axis, the default as often as all of that together.
class Pool {
 public:
  Pool(const Card& card, const Axis& axis) : axis_(axis) {
    for (const auto& entry : card.suite()) {
      const Coordinates at = parse_coordinates(entry.axes);
      if (const auto it = at.find(axis.name); it != at.end()) values_.push_back(it->second);
    }
    int64_t largest = 0;
    bool counts = std::ranges::find(kCounts, axis.name) != std::end(kCounts);
    for (const auto& value : values_)
      if (const auto n = whole(value)) largest = std::max(largest, *n);
      else counts = false;
    if (counts) largest_ = std::max(largest, whole(axis.default_value).value_or(0));
  }

  std::string draw(const Random& random) const {
    if (largest_ > 0 && random.below(0, 2))
      return std::to_string(random.below(1, largest_ + 1));
    if (values_.empty() || random.below(2, 2)) return std::string(axis_.default_value);
    return values_[size_t(random.below(3, int64_t(values_.size())))];
  }

 private:
  const Axis& axis_;
  std::vector<std::string> values_;
  int64_t largest_ = 0;  // of a count; 0: no count
};

}  // namespace

Coordinates draw(const Card& card, const Coordinates& pinned, const Random& random, uint64_t seed) {
  std::string why;
  for (uint64_t attempt = 0; attempt < 100; ++attempt) {
    const Random numbers = random.stream("attempt", attempt);
    Coordinates at = pinned;
    for (const auto& axis : card.axes())
      at.try_emplace(std::string(axis.name), Pool(card, axis).draw(numbers.stream(axis.name)));
    try {
      card.generate(at, seed);
      return at;
    } catch (const std::invalid_argument& e) {
      why = e.what();
    }
  }
  throw std::invalid_argument(std::string(card.op()) + ": a hundred random draws made no case; the last one: " + why);
}

}  // namespace harness
