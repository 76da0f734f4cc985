// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/batch.h"

#include <algorithm>
#include <stdexcept>

namespace harness {

namespace {

void require(bool ok, const char* what, const char* expected, int64_t got) {
  if (!ok)
    throw std::invalid_argument(std::string("batch: ") + what + ": expected " + expected +
                                ", got " + std::to_string(got));
}

int64_t rows_of(const BatchShape& s, int64_t request) {
  if (s.kind == "decode") return 1;
  if (s.kind == "mixed" && request % 3 == 0) return 1;
  if (s.kind == "mixed" && request % 3 == 1) return std::min<int64_t>(s.rows_per_request, 4);
  return s.rows_per_request;
}

}  // namespace

Batch make_batch(const BatchShape& s, const Random& random) {
  const bool prefill = s.kind == "prefill";
  if (s.kind != "decode" && s.kind != "speculative" && s.kind != "chunked" && s.kind != "mixed" &&
      !prefill)
    throw std::invalid_argument(
        "batch: kind: expected decode, speculative, prefill, chunked or mixed, got '" + s.kind +
        "'");
  require(s.requests >= 0, "requests", "0 or more", s.requests);
  require(s.rows_per_request >= 1, "rows per request", "1 or more", s.rows_per_request);
  require(s.context >= 0, "context", "0 or more", s.context);
  require(s.padding_rows >= 0, "padding rows", "0 or more", s.padding_rows);
  const Random lengths = random.stream("lengths");
  Batch b;
  b.query_start_loc.push_back(0);
  for (int64_t r = 0; r < s.requests; ++r) {
    const int64_t rows = rows_of(s, r);
    int64_t length = prefill ? rows : s.context;
    if (s.ragged && !prefill && r > 0)
      length = s.context / 2 + lengths.below(uint64_t(r), s.context - s.context / 2 + 1);
    length = std::max(length, rows);
    for (int64_t i = 0; i < rows; ++i) {
      b.token_to_req.push_back(r);
      b.query_positions.push_back(length - rows + i);
    }
    b.sequence_lengths.push_back(length);
    b.query_start_loc.push_back(b.rows());
  }
  for (int64_t i = 0; i < s.padding_rows; ++i) {
    b.token_to_req.push_back(0);
    b.query_positions.push_back(-1);
  }
  return b;
}

}  // namespace harness
