// SPDX-License-Identifier: Apache-2.0
// Times of a peer's kernels on the same shapes: a CSV `op,shape,cold_us,warm_us` (graph replays,
// medians) and a table that says which case of ours each of its shapes is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/compare/results.h"
#include "harness/ops/card.h"
#include "harness/report/row.h"

namespace harness {

struct PeerTime {
  std::string op, shape;  // in the peer's words
  double us = 0;
};

class Peers {
 public:
  // `shapes`: columns peer_op, peer_shape, op, axes. A peer_shape may hold placeholders,
  // "decode|rows={R}|ctx={N}", which `axes` uses again: "batch=decode requests={R} ctx={N}".
  // Throws BadRequest: unreadable, a column missing, no number, no positive time, an op or axis
  // that does not exist.
  Peers(const std::string& shapes, const std::string& times);
  // The peer's time of the case and the L2 state of that row; only rows of graph launches with a
  // cold or a warm L2 have one.
  std::optional<PeerTime> find(const Timing& row) const;
  // Its rows that are a shape of no case of ours.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  struct Entry {
    std::string op;  // ours
    Coordinates at;
    std::string peer_op, peer_shape;
    std::optional<double> cold_us, warm_us;
  };
  std::vector<Entry> entries_;
  std::vector<std::string> unknown_;
};

// A row for each case of `rows` (of graph launches) that the peer has timed, with its time and the
// implementation `label`: what a report sets beside ours. It is no row of a run and judges nothing.
std::vector<Row> peer_rows(const Peers& peers, const std::vector<Row>& rows,
                           const std::string& label);

}  // namespace harness
