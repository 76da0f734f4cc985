// SPDX-License-Identifier: Apache-2.0
#include "harness/run/launches.h"

#include <array>
#include <cstddef>

#include "harness/run/fit.h"

namespace harness {

PlannedRun planned_run(const Implementation& implementation, const Card& card, const Case& made,
                       const tk_device_info& device) {
  PlannedRun run;
  const tk_op& op = *implementation.op;
  if (op.struct_size < offsetof(tk_op, plan) + sizeof(op.plan) || !op.plan) {
    run.refused = "it does not tell (its plugin has no plan function)";
    return run;
  }
  const TensorMap outputs = unbacked_outputs(card, made);
  const HostCall host(made, outputs);
  tk_call call = host.call();
  std::array<char, 1024> message{};
  call.message = message.data();
  call.message_bytes = message.size();
  const auto launched = [](void* user, const tk_launch* l) {
    static_cast<PlannedRun*>(user)->launches.push_back(
        {l->kernel, {l->grid[0], l->grid[1], l->grid[2]}, l->threads, l->dynamic_shared_bytes});
  };
  if (op.plan(&call, &device, launched, &run) != TK_OK) {
    run.launches.clear();
    run.refused = message.data();
  }
  return run;
}

}  // namespace harness
