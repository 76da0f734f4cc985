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
  // A change that matters: SLOWER by more is a regression, and a pair that could not see it is
  // UNCLEAR. At 0 every SLOWER is a regression, and a pair has to see kSeenPct.
  double gate_pct = 0;
  bool across_devices = false;
  // Which implementation of A and of B, by its name or that behind the name of its plugin. Empty:
  // equal names are paired.
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
  int lost = 0;                 // cases that one side timed, and the other has among its failures
  int count(Change change) const;
  int regressions() const;
  int judged() const;     // pairs that are no roof
  int unmatched() const;  // cases that only one side has or could time
};

// Roofs are listed (RATIO) and in no verdict: they are the machine's, not the code's. Rows of a
// device that only one file has are left over. Throws BadRequest where the files share no device
// and that was not asked for, where they are several although it was, and where a file has no row
// of the implementation that was asked for.
Comparison compare(const Results& a, const Results& b, const ComparisonRules& rules);

// Puts the peer's time beside each pair that it has the case of.
void add_peers(Comparison& comparison, const Peers& peers);
// The peer is side A: a ratio for each case that it has, and no verdict.
Comparison compare_with_peer(const Peers& peers, const Results& b, const std::string& impl);

}  // namespace harness
