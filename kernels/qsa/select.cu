// SPDX-License-Identifier: Apache-2.0
// qsa.select: score, then topk with expand behind it, over chunks of rows, through logits in the
// workspace. The chunks follow each other on one stream, so one chunk's buffers serve all. Two
// launches a chunk; three where topk cannot hold the selection in shared memory.
#include <algorithm>

#include "qsa/launches.h"
#include "qsa/select.h"

namespace qsa {
namespace {

struct Buffers {
  int64_t chunk, k;  // rows, blocks of a row
  Tensor<2> logits;
  Tensor<1> visible;
  Tensor<2> blocks;  // no data: topk expands by itself
};

ExpandParams expand_params(const toolkit::Args& args) {
  ExpandParams p{};
  p.positions = tensor_of<1>(args.tensor("query_positions"));
  p.lengths = tensor_of<1>(args.tensor("sequence_lengths"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.indices = tensor_of<2>(args.tensor("indices"));
  p.ratio = args.integer("compress_ratio");
  return p;
}

Buffers buffers_of(const toolkit::Args& args, device::Carver& carver) {
  const int64_t columns = args.tensor("page_table").size(1) * args.tensor("k_cache").size(1);
  Buffers b{};
  b.chunk = std::min(select::rows_per_chunk(args), args.tensor("q").size(0));
  b.k = args.integer("token_topk") / args.integer("compress_ratio");
  b.logits = dense(carver.take<float>(uint64_t(b.chunk * columns)), TK_F32, b.chunk, columns);
  b.visible = dense(carver.take<int32_t>(uint64_t(b.chunk)), TK_I32, b.chunk);
  if (!can_expand(b.k, expand_params(args)))
    b.blocks = dense(carver.take<int32_t>(uint64_t(b.chunk * b.k)), TK_I32, b.chunk, b.k);
  return b;
}

// The rows of a chunk; its scores are there once `score` has run.
TopkParams topk_params(const Buffers& b, int64_t count) {
  TopkParams p{};
  p.logits = rows_of(b.logits, 0, count);
  p.visible = rows_of(b.visible, 0, count);
  p.k = b.k;
  return p;
}

struct Select {
  static constexpr const toolkit::Contract& contract = select::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    const Buffers buffers = buffers_of(args, carver);
    plan_topk(topk_params(buffers, buffers.chunk), carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    device::Carver carver(call.workspace);
    const Buffers buffers = buffers_of(call.args, carver);
    const Tensor<3> q = tensor_of<3>(call.tensor("q"));
    const ExpandParams all = expand_params(call.args);
    for (int64_t row = 0; row < q.size[0]; row += buffers.chunk) {
      const int64_t count = std::min(buffers.chunk, q.size[0] - row);
      ScoreParams score{};
      score.q = rows_of(q, row, count);
      score.k_cache = tensor_of<4>(call.tensor("k_cache"));
      score.page_table = tensor_of<2>(call.tensor("page_table"));
      score.token_to_req = rows_of(all.token_to_req, row, count);
      score.positions = rows_of(all.positions, row, count);
      score.lengths = all.lengths;
      score.logits = rows_of(buffers.logits, 0, count);
      score.visible = rows_of(buffers.visible, 0, count);
      score.ratio = all.ratio;
      score.divisor = float(score::divisor(call.args));
      score.fill = false;  // topk reads the visible columns alone
      launch_score(score, call.stream);

      ExpandParams expand = all;
      expand.positions = score.positions;
      expand.token_to_req = score.token_to_req;
      expand.indices = rows_of(all.indices, row, count);
      TopkParams topk = topk_params(buffers, count);
      device::Carver room = carver;  // each chunk's anew
      if (can_expand(buffers.k, all)) {
        launch_topk_expand(topk, expand, room, call.stream);
        continue;
      }
      topk.blocks = expand.blocks = rows_of(buffers.blocks, 0, count);
      launch_topk(topk, room, call.stream);
      launch_expand(expand, call.stream);
    }
  }
};
DEVICE_OP(Select)

}  // namespace
}  // namespace qsa
