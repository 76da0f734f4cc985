// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/selection.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

#include "harness/generate/fill.h"

namespace harness {

namespace {

void require(bool ok, const char* what, const std::string& expected, const std::string& got) {
  if (!ok)
    throw std::invalid_argument(std::string("selection: ") + what + ": expected " + expected +
                                ", got " + got);
}

// `k` distinct ones of 0..n-1, `shared` of them (as near as possible) from `before`.
std::vector<int64_t> choose(const std::vector<int64_t>& before, int64_t n, int64_t k,
                            double jaccard, const Random& random) {
  std::vector<int64_t> old;  // what the row before chose and this one may choose, ascending
  for (const int64_t t : before)
    if (t < n) old.push_back(t);
  const int64_t available = int64_t(old.size()), fresh = n - available;
  // |A and B| / |A or B| = s / (k + |before| - s)
  const double total = double(k) + double(before.size());
  int64_t shared = int64_t(std::floor(jaccard * total / (1.0 + jaccard) + 0.5));
  shared = std::clamp(shared, std::max<int64_t>(k - fresh, 0), std::min(k, available));
  std::vector<int64_t> chosen;
  for (const int64_t i : random.stream("shared").distinct(shared, available))
    chosen.push_back(old[size_t(i)]);
  // The rest from those that are not in `old`: the i-th of them, counted over the gaps.
  size_t skipped = 0;
  for (const int64_t i : random.stream("fresh").distinct(k - shared, fresh)) {
    while (skipped < old.size() && old[skipped] - int64_t(skipped) <= i) ++skipped;
    chosen.push_back(i + int64_t(skipped));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

Tensor make_selection(const SelectionShape& s, const Random& random) {
  const int64_t rows = int64_t(s.candidates.size());
  require(s.width >= 1, "width", "1 or more", std::to_string(s.width));
  require(s.jaccard >= 0 && s.jaccard <= 1, "jaccard", "0 to 1", std::to_string(s.jaccard));
  require(s.duplicates >= 0, "duplicates", "0 or more", std::to_string(s.duplicates));
  require(s.holes >= 0, "holes", "0 or more", std::to_string(s.holes));
  require(s.group.empty() || int64_t(s.group.size()) == rows, "group", "one entry per row",
          std::to_string(s.group.size()));
  std::vector<int64_t> out(size_t(rows * s.width), -1);
  std::vector<int64_t> before;
  for (int64_t r = 0; r < rows; ++r) {
    const Random own = random.stream("row", uint64_t(r));
    const int64_t n = std::max<int64_t>(s.candidates[size_t(r)], 0), k = std::min(s.width, n);
    const bool neighbour =
        r > 0 && (s.group.empty() || s.group[size_t(r)] == s.group[size_t(r - 1)]);
    std::vector<int64_t> row;
    if (neighbour) {
      row = choose(before, n, k, s.jaccard, own);
    } else {
      row = own.stream("first").distinct(k, n);
    }
    before = row;
    if (!s.ascending) {
      const std::vector<int64_t> order = own.stream("order").shuffle(k), sorted = row;
      for (size_t i = 0; i < row.size(); ++i) row[i] = sorted[size_t(order[i])];
    }
    if (k > 1) {
      // Targets and sources come from one shuffle, so that a source is never overwritten.
      const std::vector<int64_t> at = own.stream("duplicates").shuffle(k);
      const int64_t copies = std::min(s.duplicates, k - 1);
      for (int64_t i = 0; i < copies; ++i)
        row[size_t(at[size_t(i)])] = row[size_t(at[size_t(copies + i % (k - copies))])];
    }
    const std::vector<int64_t> holes = own.stream("holes").distinct(std::min(s.holes, k), k);
    for (const int64_t i : holes) row[size_t(i)] = -1;
    std::copy(row.begin(), row.end(), out.begin() + r * s.width);
  }
  return from_integers(s.dtype, out, {rows, s.width});
}

double jaccard_of(const Tensor& selection, int64_t row, int64_t other) {
  const int64_t width = selection.shape.at(1);
  std::set<int64_t> a, either;
  int64_t both = 0;
  for (int64_t i = 0; i < width; ++i)
    if (const int64_t t = selection.integer(row * width + i); t >= 0) a.insert(t);
  either = a;
  std::set<int64_t> b;
  for (int64_t i = 0; i < width; ++i)
    if (const int64_t t = selection.integer(other * width + i); t >= 0 && b.insert(t).second) {
      both += a.contains(t) ? 1 : 0;
      either.insert(t);
    }
  return either.empty() ? 1.0 : double(both) / double(either.size());
}

}  // namespace harness
