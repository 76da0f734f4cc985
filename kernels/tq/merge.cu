// SPDX-License-Identifier: Apache-2.0
// tq.merge: the partial results of a split decode into one.
#include "device/launch.h"
#include "device/op.h"
#include "tq/merge.h"
#include "tq/split_merge.h"

namespace tq::merge {

DEVICE_KERNEL(kItemThreads) merge_splits(MergeParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) merge_item(p, i);
}

struct Merge {
  static constexpr const toolkit::Contract& contract = merge::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const TensorView mid = call.tensor("mid_o");
    const MergeParams p{mid.data<float>(),
                        {mid.stride(0), mid.stride(1), mid.stride(2), mid.stride(3)},
                        strided<1>(call.tensor("seq_lens")),
                        INT64_MAX,
                        strided<3>(call.tensor("output")),
                        strided<2>(call.tensor("lse")),
                        mid.size(1),
                        splits(call.args),
                        static_cast<int>(mid.size(3) - 1),
                        mid.size(0) * mid.size(1) * (mid.size(3) - 1)};
    if (p.items == 0) return;
    device::launch(merge_splits, item_grid(p.items), kItemThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Merge)

}  // namespace tq::merge
