// SPDX-License-Identifier: Apache-2.0
// qsa.compress: the mean of the C raw index keys of a group, for every row that closes one.
//
// Row i of request r = token_to_req[i] stands at position e = logical_positions[i]. It is live iff r is in [0,N),
// query_start_loc[r] <= i < query_start_loc[r+1], e >= C-1 and compressed_slots[i] >= 0. With
// chunk = e - (i - query_start_loc[r]) (the position of the request's first row in this step), member o = 0..C-1
// sits at p = e - (C-1-o): in raw_keys[query_start_loc[r] + p - chunk] if p >= chunk, else in row p mod S of ring
// block compressor_state_block_table[r,0]. A ring block outside [0,B) contributes 0 and still counts.
//   pooled = (fp32 sum from +0.0, oldest to newest) / C, rounded once to raw_keys' dtype
//   first_positions = the 3-axis position of member 0 from the same place (raw_positions or rope_cache; 0,0,0 for an
//   invalid ring block). Without a rope_cache: e-C+1 on all axes, wherever member 0 is.
// Rows that are not live: zeros. (e+1) mod C is not looked at. Must run before the ring is overwritten.
// Exact: first_positions always; pooled where C is a power of two, else the quotient within 2 ulp (fp32) before
// its rounding.
#pragma once

#include "toolkit/shape_rules.h"

namespace qsa::compress {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"raw_keys", Role::input, kFloat, "R,1,D", "raw index keys of this step, before norm and RoPE"},
    {"raw_positions", Role::input, dtypes(TK_I64), "R,1,3", "3-axis positions; strides may be 0 or transposed"},
    {"compressor_state_cache", Role::input, kFloat, "B,S,1,D", "a ring of raw keys per request, S >= C"},
    {"compressor_state_block_table", Role::input, dtypes(TK_I32), "?,?", "[>= N, >= 1]; only column 0 is read"},
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): padding"},
    {"query_start_loc", Role::input, kIndex, "?", "[N+1] first row of each request"},
    {"logical_positions", Role::input, kIndex, "R", "position of a row in its request"},
    {"compressed_slots", Role::input, kIndex, "R", "slot of the closed group; < 0: no group closes here"},
    {"rope_cache", Role::optional_input, dtypes(TK_I64), "B,S,1,3", "3-axis positions of the ring's rows"},
    {"pooled", Role::output, kFloat, "R,1,D", "means, raw_keys' dtype"},
    {"first_positions", Role::output, dtypes(TK_I64), "R,3", "position of the group's first member"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"compress_ratio", ScalarKind::integer, nullptr, "C, tokens per group, > 0"},
};

inline void check(const Args& a) {
  const int64_t c = require_integer(a, "compress_ratio", 1);
  const TensorView state = a.tensor("compressor_state_cache"), table = a.tensor("compressor_state_block_table"),
                   loc = a.tensor("query_start_loc"), keys = a.tensor("raw_keys");
  require_same_dtype(a, "compressor_state_cache", "raw_keys");
  require(keys.size(2) > 0, a, "raw_keys", "D > 0", got_shape(keys));
  require(state.size(1) >= c, a, "compressor_state_cache", "a ring of S >= compress_ratio = " + std::to_string(c),
          got_shape(state));
  require(loc.size(0) >= 2, a, "query_start_loc", "at least 2 entries", got_shape(loc));
  require(table.size(1) >= 1, a, "compressor_state_block_table", "at least one column", got_shape(table));
  require(table.size(0) >= loc.size(0) - 1, a, "compressor_state_block_table",
          "at least " + std::to_string(loc.size(0) - 1) + " rows (query_start_loc has one entry more)",
          got_shape(table));
  if (keys.size(0) > 0) require_positive(a, "compressor_state_cache", 0, 1);
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const TensorView keys = a.tensor("raw_keys");
  return {{"pooled", keys.dtype(), keys.shape()}, {"first_positions", TK_I64, {keys.size(0), 3}}};
}

inline constexpr Contract contract{"qsa.compress", "mean of a group's raw index keys, from this step and the ring",
                                   kTensors, kScalars, check, outputs};

}  // namespace qsa::compress
