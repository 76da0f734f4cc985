// SPDX-License-Identifier: Apache-2.0
// tq.encode: keys and values into the slots of a cache, one thread eight elements of one token and
// head. Every thread of a vector finds the vector's norm and range again by itself: no thread waits
// for another.
//
// Of tokens with the same slot the last one wins: two passes over slot_mapping find it first,
// because two blocks that write one slot would leave the codes of one token beside the norm of
// another.
#include "device/launch.h"
#include "device/op.h"
#include "tq/encode_item.h"

namespace tq::encode {

struct EncodeParams : Source {
  // [blocks*S]: 1 + the last token of each slot; defined for slots in slot_mapping
  uint32_t* owner;
  int groups;
  int64_t items;  // N * Hk * groups
};

DEVICE_KERNEL(kItemThreads) clear_owners(EncodeParams p) {
  for (int64_t i = first_item(); i < p.tokens; i += item_step())
    if (const int64_t slot = slot_of(p, i); slot >= 0)
      device::atomic_exchange(p.owner + slot, uint32_t{0});
}

DEVICE_KERNEL(kItemThreads) find_owners(EncodeParams p) {
  for (int64_t i = first_item(); i < p.tokens; i += item_step())
    if (const int64_t slot = slot_of(p, i); slot >= 0)
      device::atomic_max(p.owner + slot, static_cast<uint32_t>(i + 1));
}

DEVICE_KERNEL(kItemThreads) encode_slots(EncodeParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) {
    const int group = static_cast<int>(i % p.groups);
    const int64_t head = i / p.groups % p.heads, token = i / p.groups / p.heads;
    const int64_t slot_id = slot_of(p, token);
    if (slot_id < 0 || p.owner[slot_id] != static_cast<uint32_t>(token + 1)) continue;
    const int64_t block = slot_id / p.cache.page;
    const Slot slot =
        slot_at(p.cache, slot_offset(p.cache, block, slot_id - block * p.cache.page, head));
    const int left = p.format.head_dim - group * kGroup;
    const int count = left < kGroup ? left : kGroup;
    const int64_t key_at = token * p.key.stride[0] + head * p.key.stride[1];
    if (p.format.fp8)
      encode_fp8_key(p, slot, key_at, group, count);
    else
      encode_centroid_key(p, slot, key_at, group, count);
    encode_value(p, slot, token * p.value.stride[0] + head * p.value.stride[1], group, count);
  }
}

struct Encode {
  static constexpr const toolkit::Contract& contract = encode::contract;
  static constexpr const char* implementation = "portable";

  static uint32_t* take_owners(const toolkit::Args& a, device::Carver& carver) {
    const TensorView cache = a.tensor("kv_cache");
    return carver.take<uint32_t>(static_cast<uint64_t>(cache.size(0)) * cache.size(1));
  }
  static uint64_t workspace(const toolkit::Args& a) {
    const int64_t tokens = a.tensor("key").size(0);
    if (tokens >= int64_t{UINT32_MAX})
      throw device::Unsupported("because a call takes fewer than 4294967295 tokens, got " +
                                std::to_string(tokens));
    if (tokens == 0) return 0;
    device::Carver carver(nullptr);
    take_owners(a, carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    const Args& a = call.args;
    EncodeParams p{source_of(a), nullptr, 0, 0};
    p.groups = groups_of(p.format.head_dim);
    p.items = p.tokens * p.heads * p.groups;
    if (p.items == 0) return;
    device::Carver carver(call.workspace);
    p.owner = take_owners(a, carver);
    device::launch(clear_owners, item_grid(p.tokens), kItemThreads, 0, call.stream, p);
    device::launch(find_owners, item_grid(p.tokens), kItemThreads, 0, call.stream, p);
    device::launch(encode_slots, item_grid(p.items), kItemThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Encode)

}  // namespace tq::encode
