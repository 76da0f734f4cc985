// SPDX-License-Identifier: Apache-2.0
// tq.encode: keys and values into the slots of a cache, one thread eight elements of one token and
// head. Every thread of a vector finds the vector's norm and range again by itself: no thread waits
// for another.
//
// Of tokens with the same slot the last one wins: two passes over slot_mapping find it first,
// because two blocks that write one slot would leave the codes of one token beside the norm of
// another. A vector with NaN or inf gets codes 0 and norm NaN (centroid keys) or scale NaN and zero
// 0 (values).
#include "device/launch.h"
#include "device/op.h"
#include "tq/encode.h"
#include "tq/rotation.h"

namespace tq::encode {

inline constexpr float kMostHalf = 65504;
inline constexpr float kHalfOverflows = 65520;  // rounds to infinity from here on

struct EncodeParams {
  Strided<3> key, value;  // [N,Hk,D]
  Strided<1> slot_mapping;
  Cache cache;
  SlotFormat format;
  Rotation pi;
  Codebook centroids;
  uint32_t*
      owner;  // [blocks*S]: 1 + the last token of each slot; defined for slots in slot_mapping
  int64_t tokens, heads;
  int groups;
  int64_t items;  // N * Hk * groups
};

// Slot of a token, or -1 where it is to be skipped.
DEVICE_FUNCTION int64_t slot_of(const EncodeParams& p, int64_t token) {
  const int64_t slot =
      load_index(p.slot_mapping.data, p.slot_mapping.dtype, token * p.slot_mapping.stride[0]);
  return slot >= 0 && slot < p.cache.blocks * p.cache.page ? slot : -1;
}

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

// sqrt of a finite double >= 0 from the fp32 one: the argument is scaled by a power of 4 into [1,
// 4), one Newton step doubles the 24 good bits.
DEVICE_FUNCTION double square_root(double x) {
  if (x == 0) return 0;
  const int exponent = static_cast<int>(device::bit_cast<uint64_t>(x) >> 52) - 1023;
  const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
  const double down = device::bit_cast<double>(static_cast<uint64_t>(1023 - 2 * half) << 52);
  const double up = device::bit_cast<double>(static_cast<uint64_t>(1023 + half) << 52);
  const double m = x * down;
  const double r = device::sqrt(static_cast<float>(m));
  return 0.5 * (r + m / r) * up;
}

DEVICE_FUNCTION void encode_fp8_key(const EncodeParams& p, const Slot& slot, int64_t at, int group,
                                    int count) {
  uint64_t word = 0;
  for (int e = 0; e < count; ++e) {
    const float x =
        load_float(p.key.data, p.key.dtype, at + (group * kGroup + e) * p.key.stride[2]);
    word |= uint64_t{encode_fp8(p.format.fp8, x)} << (8 * e);
  }
  store_group(slot, 0, p.format.key_bytes, 8, group, word);
}

DEVICE_FUNCTION void encode_centroid_key(const EncodeParams& p, const Slot& slot, int64_t at,
                                         int group, int count) {
  double squares = 0;  // cannot overflow for fp32 elements: not finite iff an element is not
  for (int j = 0; j < p.format.head_dim; ++j) {
    const double x = load_float(p.key.data, p.key.dtype, at + j * p.key.stride[2]);
    squares += x * x;
  }
  const bool finite = squares < 1e300;
  const double norm = finite ? square_root(squares) : 0;
  uint64_t word = 0;
  if (finite) {
    double y[kGroup];
    rotate_group(p.pi, p.key.data, p.key.dtype, at, p.key.stride[2], p.format.head_dim,
                 group * kGroup, count, y);
    const int levels = 1 << p.format.key_bits;
    for (int e = 0; e < kGroup; ++e) {
      if (e >= count) break;
      const double unit = y[e] / (norm + 1e-8);
      int code = 0;
      float low = p.centroids.data[0];
      for (int c = 1; c < levels; ++c) {
        const float high = p.centroids.data[c * p.centroids.stride];
        code += unit >= static_cast<double>((low + high) * 0.5f);
        low = high;
      }
      word |= static_cast<uint64_t>(code) << (e * p.format.key_bits);
    }
  }
  store_group(slot, 0, p.format.key_bytes, p.format.key_bits, group, word);
  if (group == 0)
    store_half(slot, p.format.norm_at,
               !finite            ? device::nan()
               : norm < kMostHalf ? static_cast<float>(norm)
                                  : kMostHalf);
}

DEVICE_FUNCTION float load_value(const EncodeParams& p, int64_t at, int d, float most) {
  const float v = load_float(p.value.data, p.value.dtype, at + d * p.value.stride[2]);
  return device::min(device::max(v, -most), most);
}

struct ValueRange {
  float low, scale;
  bool finite;  // no element is NaN or inf
};
DEVICE_FUNCTION ValueRange value_range(const EncodeParams& p, int64_t at, float most) {
  float low = most, high = -most;
  bool finite = true;
  for (int d = 0; d < p.format.head_dim; ++d) {
    const float v = load_value(p, at, d, most);
    finite = finite && device::abs(v) < device::infinity();
    low = device::min(low, v);
    high = device::max(high, v);
  }
  const float levels = static_cast<float>((1 << p.format.value_bits) - 1);
  return {low, device::max(device::divide(high - low, levels), 1e-8f), finite};
}

DEVICE_FUNCTION void encode_value(const EncodeParams& p, const Slot& slot, int64_t at, int group,
                                  int count) {
  float most = device::infinity();
  ValueRange range = value_range(p, at, most);
  const bool finite = range.finite;
  // A minimum or scale that f16 cannot hold: clamp before quantising. Clamping only what is stored
  // would shift every other element of the vector.
  if (finite && device::max(device::abs(range.low), range.scale) >= kHalfOverflows) {
    most = kMostHalf;
    range = value_range(p, at, most);
  }
  const int top = (1 << p.format.value_bits) - 1;
  uint64_t word = 0;
  for (int e = 0; finite && e < count; ++e) {
    const float steps =
        device::divide(load_value(p, at, group * kGroup + e, most) - range.low, range.scale);
    const int code = static_cast<int>(steps + 0.5f);
    word |= static_cast<uint64_t>(code < top ? code : top) << (e * p.format.value_bits);
  }
  store_group(slot, p.format.value_at, p.format.value_bytes, p.format.value_bits, group, word);
  if (group == 0) {
    store_half(slot, p.format.scale_at, finite ? range.scale : device::nan());
    store_half(slot, p.format.zero_at, finite ? range.low : 0);
  }
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
    const TensorView key = a.tensor("key");
    EncodeParams p{};
    p.key = strided<3>(key);
    p.value = strided<3>(a.tensor("value"));
    p.slot_mapping = strided<1>(a.tensor("slot_mapping"));
    p.cache = cache_of(a);
    p.format = slot_format(a, key.size(2));
    if (!p.format.fp8) p.pi = rotation_of(a);
    p.centroids = codebook(a, p.format);
    p.tokens = key.size(0);
    p.heads = key.size(1);
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
