// SPDX-License-Identifier: Apache-2.0
// Roofs of a device, and how near to them a row comes. A measured roof is a row with op "roof.*"
// of the same device; a datasheet's value stands beside it and is always named as one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/report/row.h"

namespace harness {

struct RoofLine {
  enum class Kind { memory, cache, compute };
  Kind kind;
  std::string label;  // "stream_read", "datasheet"
  double value;       // GB/s; compute: GFLOP/s
  bool measured;
  std::string source;  // who says so
};

// A line of datasets/devices.csv. It is meant for a device whose name has all words of `match`.
struct Datasheet {
  std::string match;
  std::optional<double> gbps, gflops;
  std::string source;
};

// Throws BadRequest where the file cannot be read, or a value is neither empty nor above 0.
std::vector<Datasheet> read_datasheets(const std::string& path);

bool is_roof(const Row& row);    // op "roof.*"
bool sets_roof(const Row& row);  // right, if noisy: a run's ceilings and a page's roofs are of these

// Measured ones first. The first datasheet that matches counts.
std::vector<RoofLine> roofs_of(const std::string& device, const std::vector<Row>& rows,
                               const std::vector<Datasheet>& datasheets);

// The highest of its kind, none where there is none.
const RoofLine* best_roof(const std::vector<RoofLine>& roofs, RoofLine::Kind kind, bool measured);

// Time that the roofs allow over the time taken. A warm row is held against the cache's roof, which
// no datasheet has. None where the row has no time or its roof is unknown.
struct RoofShare {
  double percent;
  bool measured;
};
std::optional<RoofShare> share_of_roof(const Row& row, const std::vector<RoofLine>& roofs);

}  // namespace harness
