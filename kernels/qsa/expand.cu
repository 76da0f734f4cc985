// SPDX-License-Identifier: Apache-2.0
// qsa.expand: one block a row; the threads stride over the columns.
#include <algorithm>

#include "qsa/expand.h"
#include "qsa/expansion.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kAhead = 4;  // columns of a thread

// The blocks are loaded before it is known which of them count, because a row is a chain of loads
// otherwise: request, length, block.
template <class Index>
DEVICE_KERNEL(kMaxThreads)
expand_kernel(ExpandParams p) {
  const int64_t row = device::block_x();
  const Index blocks = Index(p.blocks.size[1]), width = Index(p.indices.size[1]);
  const auto load = [&](Index i) { return i < blocks ? load_index(p.blocks, row, i) : -1; };
  int64_t ahead[kAhead];
  DEVICE_UNROLL
  for (int i = 0; i < kAhead; ++i)
    ahead[i] = load(RowTokens<Index>::block_of(p, Index(device::thread() + i * device::threads())));

  const Expansion expansion = expansion_of(p, row);
  const RowTokens<Index> tokens(p, expansion, row, p.blocks.size[1]);
  Index column = Index(device::thread());
  DEVICE_UNROLL
  for (int i = 0; i < kAhead; ++i, column += Index(device::threads()))
    if (column < width) tokens.write(column, [&](Index) { return ahead[i]; });
  DEVICE_ROLLED
  for (; column < width; column += Index(device::threads())) tokens.write(column, load);
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
  // No row has as many tokens as the largest divisor, and none that is larger divides another.
  p.by_ratio = Divider(uint32_t(std::min(p.ratio, int64_t{1} << 31)));
  return p;
}

void launch_expand(const ExpandParams& p, void* stream) {
  const int64_t rows = p.blocks.size[0], width = p.indices.size[1];
  if (rows == 0) return;
  const int64_t waves = (width + device::kWave - 1) / device::kWave;
  const int threads =
      int(std::min<int64_t>(kMaxThreads, std::max<int64_t>(1, waves) * device::kWave));
  const auto kernel = width <= INT32_MAX ? expand_kernel<uint32_t> : expand_kernel<uint64_t>;
  device::launch(kernel, blocks(rows), threads, 0, stream, with_divider(p));
}

}  // namespace qsa
