// SPDX-License-Identifier: Apache-2.0
// qsa.expand: one block a row; the threads stride over the columns.
#include "qsa/expand.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 256;

DEVICE_KERNEL(kThreads) expand_kernel(ExpandParams p) {
  const int64_t row = device::block_x();
  const int64_t ratio = p.ratio;
  const int64_t seen = tokens_through(load_index(p.positions, row));
  const int64_t length = length_of(p.lengths, load_index(p.token_to_req, row));
  const int64_t closed = groups_in(seen, ratio);
  const int64_t full = smaller(smaller(closed, groups_in(length, ratio)), p.blocks.size[1]);
  const int64_t tail = seen - closed * ratio;
  for (int64_t j = device::thread(); j < p.indices.size[1]; j += device::threads()) {
    int64_t token = -1;
    if (j < full * ratio) {
      // A block at or beyond the length holds no token of it, and its product with the ratio might
      // not fit.
      const int64_t block = load_index(p.blocks, row, j / ratio);
      if (block >= 0 && block < length) token = block * ratio + j % ratio;
    } else if (j - full * ratio < tail) {
      token = closed * ratio + (j - full * ratio);
    }
    *element<int32_t>(p.indices, row, j) = token < length ? int32_t(token) : -1;
  }
}

struct Expand {
  static constexpr const toolkit::Contract& contract = expand::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    ExpandParams p{};
    p.blocks = tensor_of<2>(call.tensor("block_indices"));
    p.positions = tensor_of<1>(call.tensor("query_positions"));
    p.lengths = tensor_of<1>(call.tensor("sequence_lengths"));
    p.token_to_req = tensor_of<1>(call.tensor("token_to_req"));
    p.indices = tensor_of<2>(call.tensor("indices"));
    p.ratio = call.args.integer("compress_ratio");
    launch_expand(p, call.stream);
  }
};
DEVICE_OP(Expand)

}  // namespace

void launch_expand(const ExpandParams& p, void* stream) {
  const int64_t rows = p.blocks.size[0];
  if (rows == 0) return;
  device::launch(expand_kernel, blocks(rows), kThreads, 0, stream, p);
}

}  // namespace qsa
