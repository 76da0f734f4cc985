// SPDX-License-Identifier: Apache-2.0
// tq.rotate: q_rot = float(query) @ Pi^T.
#include "device/launch.h"
#include "device/op.h"
#include "tq/rotate.h"
#include "tq/rotation.h"

namespace tq::rotate {

DEVICE_KERNEL(kItemThreads) rotate_queries(RotateParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) rotate_item(p, i);
}

struct Rotate {
  static constexpr const toolkit::Contract& contract = rotate::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const RotateParams p = rotate_params(call.args, strided<3>(call.tensor("q_rot")));
    if (p.items == 0) return;
    device::launch(rotate_queries, item_grid(p.items), kItemThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Rotate)

}  // namespace tq::rotate
