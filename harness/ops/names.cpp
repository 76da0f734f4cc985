// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/names.h"

#include <algorithm>
#include <stdexcept>

namespace harness {

namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view bare(std::string_view op) { return op.substr(op.find('.') + 1); }

}  // namespace

std::string nearest(std::string_view typed, const std::vector<std::string>& words) {
  std::string best;
  size_t distance = std::string::npos;
  for (const std::string& w : words)
    if (const size_t d = edit_distance(typed, w); d < distance) {
      distance = d;
      best = w;
    }
  return distance <= std::max<size_t>(2, best.size() / 3) ? best : "";
}

std::string nearest_hint(std::string_view typed, const std::vector<std::string>& words) {
  const std::string word = nearest(typed, words);
  return word.empty() ? "" : ", nearest is '" + word + "'";
}

const Card& resolve_op(std::string_view typed) {
  if (const Card* exact = find_card(typed)) return *exact;
  std::vector<const Card*> same;
  std::vector<std::string> names;
  std::string all;
  for (const Card* c : cards()) {
    names.emplace_back(c->op());
    all += (all.empty() ? "" : ", ") + names.back();
    if (bare(c->op()) == typed) same.push_back(c);
  }
  if (same.size() == 1) return *same[0];
  if (same.size() > 1)
    throw std::invalid_argument("op '" + std::string(typed) + "' is in two families: write " +
                                std::string(same[0]->op()) + " or " + std::string(same[1]->op()));
  // Always the nearest, however far: "atend" and "topk2" are typing errors, and the list follows
  // anyway.
  std::string near;
  size_t distance = std::string::npos;
  for (const std::string& n : names)
    if (const size_t d = std::min(edit_distance(typed, n), edit_distance(typed, bare(n)));
        d < distance) {
      distance = d;
      near = n;
    }
  throw std::invalid_argument("unknown op '" + std::string(typed) + "'" + ", nearest is '" + near +
                              "'; ops: " + all);
}

}  // namespace harness
