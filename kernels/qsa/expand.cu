// SPDX-License-Identifier: Apache-2.0
// qsa.expand: one block a row; the threads stride over the columns. Few rows take large blocks, for
// a row's columns are loads that wait for each other otherwise.
#include "qsa/expand.h"
#include "qsa/expansion.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 256, kMaxThreads = 1024;

template <class Index>
DEVICE_KERNEL(kMaxThreads)
expand_kernel(ExpandParams p) {
  const int64_t row = device::block_x();
  write_tokens<Index>(p, row, expansion_of(p, row), p.blocks.size[1],
                      [&](Index i) { return load_index(p.blocks, row, i); });
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
  const int threads = rows <= device::multiprocessors() ? kMaxThreads : kThreads;
  const auto kernel =
      p.indices.size[1] <= INT32_MAX ? expand_kernel<uint32_t> : expand_kernel<uint64_t>;
  device::launch(kernel, blocks(rows), threads, 0, stream, p);
}

}  // namespace qsa
