// SPDX-License-Identifier: Apache-2.0
// The pass of tq.decode over a cache of 256 dimensions (decode_heads.h), a part of decode_sm_80.cu.
#include "tq/decode_heads_stream.h"
#include "tq/decode_host.h"

namespace tq::decode {
namespace {

// The instance of a call: f(key bits, value bits, many heads).
template <class F>
void with_heads_instance(const Plan& p, F f) {
  const auto with_many = [&](auto key, auto value) {
    if (p.columns == kManyHeads)
      f(key, value, std::true_type());
    else
      f(key, value, std::false_type());
  };
  const auto with_value = [&](auto key) {
    if (p.format.value_bits == 3)
      with_many(key, std::integral_constant<int, 3>());
    else
      with_many(key, std::integral_constant<int, 4>());
  };
  if (p.format.fp8)
    with_value(std::integral_constant<int, 8>());
  else
    with_value(std::integral_constant<int, 3>());
}

}  // namespace

void launch_heads(const Plan& plan, const StreamParams& s, void* stream) {
  const device::Grid grid{plan.parts, plan.tiles / plan.block_tiles, 1};
  with_heads_instance(plan, [&](auto key, auto value, auto many) {
    device::launch_overlapping(decode_heads<key(), value(), many()>, grid,
                               plan.sets * plan.head_tiles * kTeamWaves * device::kWave,
                               static_cast<size_t>(plan.shared_bytes), stream, s);
  });
}

}  // namespace tq::decode
