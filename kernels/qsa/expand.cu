// SPDX-License-Identifier: Apache-2.0
// qsa.expand: one block a row; a lane has a block of tokens.
#include <algorithm>

#include "qsa/expand.h"
#include "qsa/expansion.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kMaxThreads = 1024;

// A thread's first block is loaded before it is known whether it counts: request, length and block
// would be a chain of loads otherwise.
template <class Index>
DEVICE_KERNEL(kMaxThreads)
expand_kernel(ExpandParams p) {
  const int64_t row = device::block_x(), k = p.blocks.size[1];
  const auto load = [&](Index i) { return int64_t(i) < k ? load_index(p.blocks, row, i) : -1; };
  Index i = Index(device::thread());
  int64_t block = load(i);
  const Expansion e = expansion_of(p, row);
  while (int64_t(i - Index(device::lane())) <= k) {
    write_groups(p, row, e, k, i, block);
    i += Index(device::threads());
    block = load(i);
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

ExpandParams with_divider(ExpandParams p) {
  // What is divided is below 2^31: by a larger ratio it gives 0, as by 2^31.
  p.by_ratio = Divider(uint32_t(std::min(p.ratio, int64_t{1} << 31)));
  return p;
}

void launch_expand(const ExpandParams& p, void* stream) {
  const int64_t rows = p.blocks.size[0];
  if (rows == 0) return;
  const int64_t groups = p.blocks.size[1] + 1, waves = (groups + device::kWave - 1) / device::kWave;
  const int threads = int(std::min<int64_t>(kMaxThreads, waves * device::kWave));
  const auto kernel =
      p.indices.size[1] <= INT32_MAX ? expand_kernel<uint32_t> : expand_kernel<uint64_t>;
  device::launch(kernel, blocks(rows), threads, 0, stream, with_divider(p));
}

}  // namespace qsa
