// SPDX-License-Identifier: Apache-2.0
// tq.dequant: a TurboQuant cache back to f16 keys and values, one thread eight elements of one
// token. Norm correction needs the whole key's codes: every thread of a key sums them again rather
// than meeting the others.
#include "device/launch.h"
#include "device/op.h"
#include "tq/dequant.h"
#include "tq/slot_codes.h"

namespace tq::dequant {

struct DequantParams {
  Cache cache;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  bool norm_correction;
  Strided<4> k, v;  // [B,Hk,tokens,D] f16
  int64_t heads, tokens;
  int groups;
  int64_t items;  // B * Hk * tokens * groups
};

// sqrt(sum c^2 + 1e-16) over a key's centroids.
DEVICE_FUNCTION float centroid_norm(const DequantParams& p, const Slot& slot) {
  float sum = 0;
  for (int group = 0; group < p.groups; ++group) {
    const uint64_t word = load_group(slot, 0, p.format.key_bytes, p.format.key_bits, group);
    for (int e = 0; e < kGroup && group * kGroup + e < p.format.head_dim; ++e) {
      const float c = key_element(p.format, p.centroids, code_of(word, p.format.key_bits, e));
      sum += c * c;
    }
  }
  return device::sqrt(sum + 1e-16f);
}

DEVICE_FUNCTION int64_t element(const Strided<4>& t, int64_t row, int64_t head, int64_t token,
                                int d) {
  return row * t.stride[0] + head * t.stride[1] + token * t.stride[2] + d * t.stride[3];
}

DEVICE_FUNCTION void dequant_item(const DequantParams& p, int64_t item) {
  const int group = static_cast<int>(item % p.groups);
  item /= p.groups;
  const int64_t token = item % p.tokens;
  item /= p.tokens;
  const int64_t head = item % p.heads, row = item / p.heads;

  const int64_t offset = find_slot(p.cache, p.table, row, token, head);
  const bool live = offset != kMasked;
  uint64_t key_codes = 0, value_codes = 0;
  float norm = 1, divisor = 1, scale = 0, zero = 0;
  if (live) {
    const Slot slot = slot_at(p.cache, offset);
    key_codes = load_group(slot, 0, p.format.key_bytes, p.format.key_bits, group);
    value_codes =
        load_group(slot, p.format.value_at, p.format.value_bytes, p.format.value_bits, group);
    scale = load_half(slot, p.format.scale_at);
    zero = load_half(slot, p.format.zero_at);
    if (!p.format.fp8) {
      norm = load_half(slot, p.format.norm_at);
      if (p.norm_correction) divisor = centroid_norm(p, slot);
    }
  }
  for (int e = 0; e < kGroup; ++e) {
    const int d = group * kGroup + e;
    if (d >= p.format.head_dim) break;
    float k = 0, v = 0;
    if (live) {
      k = key_element(p.format, p.centroids, code_of(key_codes, p.format.key_bits, e));
      if (!p.format.fp8) k = norm * (p.norm_correction ? device::divide(k, divisor) : k);
      // The product has at most 15 bits: exact in fp32, so that a fused multiply-add rounds the
      // same.
      v = static_cast<float>(code_of(value_codes, p.format.value_bits, e)) * scale + zero;
    }
    store_float(p.k.data, TK_F16, element(p.k, row, head, token, d), k);
    store_float(p.v.data, TK_F16, element(p.v, row, head, token, d), v);
  }
}

DEVICE_KERNEL(kItemThreads) dequant_slots(DequantParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) dequant_item(p, i);
}

struct Dequant {
  static constexpr const toolkit::Contract& contract = dequant::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const Args& a = call.args;
    DequantParams p{};
    p.cache = cache_of(a);
    p.table = page_table(a);
    p.format = slot_format(a, head_dim(a));
    p.centroids = codebook(a, p.format);
    p.norm_correction = a.boolean("norm_correction");
    p.k = strided<4>(call.tensor("k"));
    p.v = strided<4>(call.tensor("v"));
    p.heads = a.tensor("kv_cache").size(2);
    p.tokens = tokens(a);
    p.groups = groups_of(p.format.head_dim);
    p.items = a.tensor("block_table").size(0) * p.heads * p.tokens * p.groups;
    if (p.items == 0) return;
    device::launch(dequant_slots, item_grid(p.items), kItemThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Dequant)

}  // namespace tq::dequant
