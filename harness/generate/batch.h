// SPDX-License-Identifier: Apache-2.0
// Batches as a server forms them: which request each row belongs to, and at which position it stands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/generate/random.h"

namespace harness {

struct Batch {
  std::vector<int64_t> token_to_req;      // [R]; padding rows: 0
  std::vector<int64_t> query_positions;   // [R]; padding rows: -1
  std::vector<int64_t> sequence_lengths;  // [N], this step's rows included
  std::vector<int64_t> query_start_loc;   // [N+1]; padding rows stand behind the last
  int64_t rows() const { return int64_t(token_to_req.size()); }
  int64_t requests() const { return int64_t(sequence_lengths.size()); }
};

struct BatchShape {
  // decode: one row a request, at its last position. speculative: rows_per_request rows, the last positions.
  // prefill: the first rows_per_request positions of a request (length = rows_per_request).
  // chunked: rows_per_request rows that end at the context (a later chunk of a prefill).
  // mixed: requests take turns: decode, speculative (at most 4 rows), chunked.
  std::string kind = "decode";
  int64_t requests = 4;
  int64_t rows_per_request = 1;
  int64_t context = 2048;    // longest request, in tokens
  bool ragged = true;        // lengths drawn from [context/2, context] (the first request has the context); else equal
  int64_t padding_rows = 0;  // rows of request 0 at position -1, as a server pads a graph
};

// Throws std::invalid_argument for an unknown kind or a shape that makes no batch.
Batch make_batch(const BatchShape& shape, const Random& random);

}  // namespace harness
