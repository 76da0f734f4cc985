// SPDX-License-Identifier: Apache-2.0
// Scores of one row in float64 with their bounds; shared by the oracles of score, select and by
// select's judge.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "reference/reader.h"

namespace reference {

struct RowScores {
  int64_t visible = 0;        // not clamped to the columns
  std::vector<double> value;  // -inf where nothing is visible
  std::vector<double> bound;  // +inf: fp32 may overflow on the way, so the element is not judged
  bool overflow = false;      // some bound is +inf
};

class Scorer {
 public:
  // `args` holds the tensors q, k_cache, page_table, token_to_req, query_positions,
  // sequence_lengths.
  Scorer(const toolkit::Args& args, int64_t columns, double divisor, int64_t compress_ratio);
  RowScores row(int64_t i);

 private:
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  void gather(int64_t request, int64_t visible);

  Reader q_, k_, table_, requests_, positions_, lengths_;
  int64_t columns_, ratio_;
  double divisor_;
  // Keys of the request that was gathered last, one row a column of the scores.
  int64_t request_ = -1;
  Matrix keys_;
  std::vector<uint8_t> live_;
};

}  // namespace reference
