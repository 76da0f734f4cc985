// SPDX-License-Identifier: Apache-2.0
// Pairs the cases of two result files and says of each what changed from A to B.
#pragma once

#include <string>
#include <vector>

#include "harness/compare/peers.h"
#include "harness/compare/ratio.h"
#include "harness/compare/results.h"

namespace harness {

struct ComparisonRules {
  // A slowdown that matters: SLOWER above it is a regression, and a pair that could not see it is
  // UNCLEAR. At 0 every SLOWER is a regression, and a pair has to see kSeenPct.
  double gate_pct = 0;
  bool across_devices = false;
  // Which implementation of A and of B. Empty: equal names are paired.
  std::string impl_a, impl_b;
};

// What every pair has to see where no gate says more.
inline constexpr double kSeenPct = 5;

struct Compared {
  Timing a, b;  // the last run of each side, for its names
  Side side_a, side_b;
  Ratio ratio;
  bool regression = false;
  std::optional<PeerTime> peer;
};

struct Left {
  Timing timing;
  std::string side;  // "A", "B"
};

struct Comparison {
  std::vector<Compared> pairs;  // worst first: SLOWER, UNCLEAR, FASTER, SAME
  std::vector<Left> only;       // a case that the other side does not have
  std::vector<Left> failures;   // rows that failed, were skipped or not supported
  int count(Change change) const;
  int regressions() const;
};

// Throws BadRequest where the devices differ and that was not asked for, and where they are several
// although it was.
Comparison compare(const Results& a, const Results& b, const ComparisonRules& rules);

// Puts the peer's time beside each pair that it has the case of.
void add_peers(Comparison& comparison, const Peers& peers);
// The peer is side A: a ratio for each case that it has, and no verdict.
Comparison compare_with_peer(const Peers& peers, const Results& b, const std::string& impl);

}  // namespace harness
