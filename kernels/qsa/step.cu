// SPDX-License-Identifier: Apache-2.0
// qsa.step: the launches of one layer's step, in a server's order, on one stream. The ring is
// written after compress has read it; score reads the compressed cache after this step's groups are
// in it.
#include <cmath>

#include "qsa/launches.h"
#include "qsa/step.h"

namespace qsa {
namespace {

CompressParams compress_stage(const toolkit::Args& args) {
  CompressParams p{};
  p.raw_keys = tensor_of<3>(args.tensor("compress.raw_keys"));
  p.raw_positions = tensor_of<3>(args.tensor("compress.raw_positions"));
  p.ring = tensor_of<4>(args.tensor("compress.compressor_state_cache"));
  if (const auto rope = args.find("compress.rope_cache")) p.rope = tensor_of<4>(rope);
  p.ring_table = tensor_of<2>(args.tensor("compress.compressor_state_block_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.query_start_loc = tensor_of<1>(args.tensor("query_start_loc"));
  p.positions = tensor_of<1>(args.tensor("logical_positions"));
  p.slots = tensor_of<1>(args.tensor("compressed_slots"));
  p.pooled = tensor_of<3>(args.tensor("compress.pooled"));
  p.first_positions = tensor_of<2>(args.tensor("compress.first_positions"));
  p.ratio = args.integer("compress_ratio");
  return p;
}

ScoreParams score_stage(const toolkit::Args& args) {
  ScoreParams p{};
  p.q = tensor_of<3>(args.tensor("score.q"));
  p.k_cache = tensor_of<4>(args.tensor("store.cache"));
  p.page_table = tensor_of<2>(args.tensor("page_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.positions = tensor_of<1>(args.tensor("query_positions"));
  p.lengths = tensor_of<1>(args.tensor("sequence_lengths"));
  p.logits = tensor_of<2>(args.tensor("score.logits"));
  p.visible = tensor_of<1>(args.tensor("score.visible_blocks"));
  p.ratio = args.integer("compress_ratio");
  p.divisor = float(std::sqrt(double(p.q.size[2])));
  p.fill = true;
  return p;
}

TopkParams topk_stage(const toolkit::Args& args) {
  TopkParams p{};
  p.logits = tensor_of<2>(args.tensor("score.logits"));
  p.visible = tensor_of<1>(args.tensor("score.visible_blocks"));
  p.blocks = tensor_of<2>(args.tensor("topk.block_indices"));
  p.k = p.blocks.size[1];
  return p;
}

AttendParams attend_stage(const toolkit::Args& args) {
  AttendParams p{};
  p.q = tensor_of<3>(args.tensor("attend.q"));
  p.k_cache = tensor_of<4>(args.tensor("attend.k_cache"));
  p.v_cache = tensor_of<4>(args.tensor("attend.v_cache"));
  p.tokens = tensor_of<2>(args.tensor("expand.indices"));
  p.block_table = tensor_of<2>(args.tensor("block_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.output = tensor_of<3>(args.tensor("attend.output"));
  return p;
}

// The stores of a step: the compressed cache's and, where the ring is written, the ring's.
struct Stores {
  Stores(const toolkit::Args& args, device::Carver& carver)
      : compressed(store_params(args.tensor("store.cache"), args.tensor("compressed_slots"),
                                args.tensor("store.rows"), carver)) {
    const auto slots = args.find("ring_slots");
    if (!slots) return;
    has_ring = true;
    ring = store_params(args.tensor("compress.compressor_state_cache"), slots,
                        args.tensor("compress.raw_keys"), carver);
  }
  StoreParams compressed, ring{};
  bool has_ring = false;
};

struct Step {
  static constexpr const toolkit::Contract& contract = step::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    Stores(args, carver);
    plan_topk(topk_stage(args), carver);
    plan_attend(attend_stage(args), carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    const toolkit::Args& args = call.args;
    const ScoreParams score = score_stage(args);
    const TopkParams topk = topk_stage(args);
    ExpandParams expand{};
    expand.blocks = topk.blocks;
    expand.positions = score.positions;
    expand.lengths = score.lengths;
    expand.token_to_req = score.token_to_req;
    expand.indices = tensor_of<2>(args.tensor("expand.indices"));
    expand.ratio = score.ratio;
    device::Carver carver(call.workspace);

    launch_compress(compress_stage(args), call.stream);
    const Stores stores(args, carver);
    launch_store(stores.compressed, call.stream);
    if (stores.has_ring) launch_store(stores.ring, call.stream);
    launch_score(score, call.stream);
    if (can_expand(topk.k, expand)) {
      launch_topk_expand(topk, expand, carver, call.stream);
    } else {
      launch_topk(topk, carver, call.stream);
      launch_expand(expand, call.stream);
    }
    launch_attend(attend_stage(args), carver, call.stream);
  }
};
DEVICE_OP(Step)

}  // namespace
}  // namespace qsa
