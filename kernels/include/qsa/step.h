// SPDX-License-Identifier: Apache-2.0
// qsa.step: one layer's QSA step as a server runs it:
//   compress -> store (compressed cache) -> store (ring) -> score -> topk -> expand -> attend
// Between compress and store stand norm and RoPE, which are the model's: store.rows is given, and so are the queries.
// A tensor without a stage prefix is shared by all stages; `stage.name` is that stage's own (a dump writes what a
// stage put out as `stage.actual.name`). query_positions are the same numbers as logical_positions, with the dtypes
// that their ops take. The ring's store keeps the raw keys of this step (ring_slots; optional: without it the ring is
// not written).
// Oracle for free: where every context is <= token_topk + C - 1 tokens, the result is dense causal attention.
#pragma once

#include "qsa/attend.h"
#include "qsa/compress.h"
#include "qsa/expand.h"
#include "qsa/score.h"
#include "qsa/store.h"
#include "qsa/topk.h"

namespace qsa::step {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"token_to_req", Role::input, kIndex, "R", "request of a row; outside [0,N): padding"},
    {"query_positions", Role::input, kIndex, "R", "position of a row"},
    {"logical_positions", Role::input, kIndex, "R", "the same, as compress takes it"},
    {"sequence_lengths", Role::input, kIndex, "N", "tokens of a request, this step's included"},
    {"query_start_loc", Role::input, kIndex, "?", "[N+1] first row of each request"},
    {"page_table", Role::input, kIndex, "N,Wc", "pages of the compressed cache"},
    {"block_table", Role::input, kIndex, "N,W", "pages of the K/V cache"},
    {"compressed_slots", Role::input, kIndex, "R", "slot of the group that a row closes; < 0: none"},
    {"compress.raw_keys", Role::input, kFloat, "R,1,Di", "raw index keys of this step"},
    {"compress.raw_positions", Role::input, dtypes(TK_I64), "R,1,3", "3-axis positions"},
    {"compress.compressor_state_cache", Role::in_place, kFloat, "B,S,1,Di", "ring of raw keys, changed in place"},
    {"compress.compressor_state_block_table", Role::input, dtypes(TK_I32), "?,?", "ring block of a request"},
    {"compress.rope_cache", Role::optional_input, dtypes(TK_I64), "B,S,1,3", "positions of the ring's rows"},
    {"ring_slots", Role::optional_input, kIndex, "R", "ring slot of each row; < 0: not kept"},
    {"store.rows", Role::input, kFloat, "", "normed and rotated pooled keys, [R,1,Di] or [R,Di]"},
    {"store.cache", Role::in_place, kFloat, "Pc,Sc,1,Di", "compressed cache, changed in place"},
    {"score.q", Role::input, kFloat, "R,H,Di", "index queries"},
    {"attend.q", Role::input, kHalf, "R,Hq,D", "main queries"},
    {"attend.k_cache", Role::input, kHalf, "P,Sp,Hkv,D", "keys"},
    {"attend.v_cache", Role::input, kHalf, "P,Sp,Hkv,D", "values"},
    {"compress.pooled", Role::output, kFloat, "R,1,Di", "compress's means"},
    {"compress.first_positions", Role::output, dtypes(TK_I64), "R,3", "compress's first positions"},
    {"score.logits", Role::output, dtypes(TK_F32), "R,Wc*Sc", "scores"},
    {"score.visible_blocks", Role::output, dtypes(TK_I32), "R", "visible groups"},
    {"topk.block_indices", Role::output, dtypes(TK_I32), "R,K", "chosen groups"},
    {"expand.indices", Role::output, dtypes(TK_I32), "R,token_topk+C-1", "chosen tokens"},
    {"attend.output", Role::output, kHalf, "R,Hq,D", "attention output"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"compress_ratio", ScalarKind::integer, nullptr, "C, tokens per group, > 0"},
    {"token_topk", ScalarKind::integer, nullptr, "K*C, tokens of the selected groups"},
};

// The rules of the stages' own contracts, by the names that the tensors have here.
inline void check(const Args& a) {
  expand::check_width(a);
  const int64_t rows = a.tensor("token_to_req").size(0), c = a.integer("compress_ratio");
  const TensorView keys = a.tensor("compress.raw_keys"), ring = a.tensor("compress.compressor_state_cache"),
                   ring_table = a.tensor("compress.compressor_state_block_table"), loc = a.tensor("query_start_loc"),
                   store_rows = a.tensor("store.rows"), q = a.tensor("attend.q"), k = a.tensor("attend.k_cache");
  require_same_dtype(a, "compress.compressor_state_cache", "compress.raw_keys");
  require_positive(a, "compress.raw_keys", 2);
  require(ring.size(1) >= c, a, "compress.compressor_state_cache",
          "a ring of S >= compress_ratio = " + std::to_string(c), got_shape(ring));
  require(loc.size(0) >= 2, a, "query_start_loc", "at least 2 entries", got_shape(loc));
  require(ring_table.size(1) >= 1 && ring_table.size(0) >= loc.size(0) - 1, a,
          "compress.compressor_state_block_table",
          "shape [>=" + std::to_string(loc.size(0) - 1) + ",>=1] (query_start_loc has one entry more)",
          got_shape(ring_table));
  const Shape flat{rows, keys.size(2)}, headed{rows, 1, keys.size(2)};
  require(store_rows.shape() == flat || store_rows.shape() == headed, a, "store.rows",
          "shape " + to_text(flat) + " or " + to_text(headed), got_shape(store_rows));
  require_same_dtype(a, "store.rows", "store.cache");
  require_positive(a, "store.cache", 0, 1, 3);
  require_positive(a, "score.q", 1, 2);
  require_countable(a, "page_table", "store.cache");
  require_positive(a, "sequence_lengths", 0);
  require_same_dtype(a, "attend.k_cache", "attend.q");
  require_same_dtype(a, "attend.v_cache", "attend.q");
  require_positive(a, "attend.q", 1, 2);
  require_positive(a, "attend.k_cache", 0, 1, 2);
  require_positive(a, "block_table", 0, 1);
  require(q.size(1) % k.size(2) == 0, a, "attend.q", "Hq a multiple of Hkv = " + std::to_string(k.size(2)),
          got_shape(q));
  if (rows > 0) {
    require_positive(a, "compress.compressor_state_cache", 0, 1);
    require_positive(a, "page_table", 0, 1);
  }
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const int64_t rows = a.tensor("token_to_req").size(0);
  const TensorView keys = a.tensor("compress.raw_keys"), q = a.tensor("attend.q");
  const int64_t columns = a.tensor("page_table").size(1) * a.tensor("store.cache").size(1);
  const int64_t k = a.integer("token_topk") / a.integer("compress_ratio");
  return {{"compress.pooled", keys.dtype(), keys.shape()},
          {"compress.first_positions", TK_I64, {rows, 3}},
          {"score.logits", TK_F32, {rows, columns}},
          {"score.visible_blocks", TK_I32, {rows}},
          {"topk.block_indices", TK_I32, {rows, k}},
          {"expand.indices", TK_I32, {rows, expand::width(a)}},
          {"attend.output", q.dtype(), q.shape()}};
}

inline constexpr Contract contract{"qsa.step", "one layer's QSA step, as a server runs it", kTensors, kScalars, check,
                                   outputs};

}  // namespace qsa::step
