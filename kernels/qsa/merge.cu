// SPDX-License-Identifier: Apache-2.0
// qsa.merge: one block a (row, head); the threads stride over the head dimension, splits in
// ascending order.
#include "qsa/launches.h"
#include "qsa/merge.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;

DEVICE_KERNEL(kThreads) merge_kernel(MergeParams p) {
  const int64_t splits = p.partial.size[0], heads = p.partial.size[2];
  const int64_t row = device::block_x() / heads, head = device::block_x() % heads;
  const float dead = -device::infinity();
  float top = dead;  // a NaN is passed over here and enters through its weight below
  for (int64_t s = 0; s < splits; ++s)
    top = device::max(top, *element<const float>(p.lse, s, row, head));
  float total = 0.0f;
  for (int64_t s = 0; s < splits; ++s) {
    const float lse = *element<const float>(p.lse, s, row, head);
    if (lse != dead) total += device::exp2(lse - top);
  }
  for (int64_t d = device::thread(); d < p.partial.size[3]; d += device::threads()) {
    float sum = 0.0f;
    for (int64_t s = 0; s < splits; ++s) {
      const float lse = *element<const float>(p.lse, s, row, head);
      if (lse != dead)  // a dead split's partial may be garbage
        sum = device::fma(device::exp2(lse - top),
                          *element<const float>(p.partial, s, row, head, d), sum);
    }
    const float value = total == 0.0f ? 0.0f : device::divide(sum, total);
    store_float(p.output.data, p.output.dtype, offset_of(p.output, row, head, d), value);
  }
  if (p.merged_lse.data && device::thread() == 0)
    *element<float>(p.merged_lse, row, head) = total == 0.0f ? dead : top + device::log2(total);
}

struct Merge {
  static constexpr const toolkit::Contract& contract = merge::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    MergeParams p{};
    p.partial = tensor_of<4>(call.tensor("partial_output"));
    p.lse = tensor_of<3>(call.tensor("partial_lse"));
    p.output = tensor_of<3>(call.tensor("output"));
    launch_merge(p, call.stream);
  }
};
DEVICE_OP(Merge)

}  // namespace

void launch_merge(const MergeParams& p, void* stream) {
  const int64_t rows = p.partial.size[1] * p.partial.size[2];
  if (rows == 0) return;
  device::launch(merge_kernel, blocks(rows), kThreads, 0, stream, p);
}

}  // namespace qsa
