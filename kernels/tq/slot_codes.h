// SPDX-License-Identifier: Apache-2.0
// The bytes of a TurboQuant slot on the device. Codes are handled in groups of 8 elements: whatever
// the width (3, 4, or 8 for fp8 keys), a group is a whole number of bytes, so groups never share a
// byte and a stream's tail is padded by itself. Everything is read and written by single bytes:
// slots are 2-byte aligned at best, the f16 fields of odd head dimensions not at all, and the byte
// stride of the cache is free.
#pragma once

#include "tq/elements.h"
#include "tq/slot.h"

namespace tq {

inline constexpr int kGroup = 8;  // elements

// What kernels need of SlotLayout.
struct SlotFormat {
  int head_dim;
  int key_bits;    // 3, 4; 8 for fp8 keys
  int value_bits;  // 3, 4
  int key_bytes;   // codes alone
  int value_bytes;
  int norm_at, value_at, scale_at, zero_at;
  tk_dtype fp8;  // the flavour of fp8 keys; 0: centroid keys
};

inline SlotFormat slot_format(const Args& a, int64_t head_dim) {
  const SlotLayout s = slot_layout(a, head_dim);
  return {static_cast<int>(s.head_dim),
          static_cast<int>(s.key_bits),
          static_cast<int>(s.value_bits),
          static_cast<int>(s.code_bytes),
          static_cast<int>(s.scale_at - s.value_at),
          static_cast<int>(s.norm_at),
          static_cast<int>(s.value_at),
          static_cast<int>(s.scale_at),
          static_cast<int>(s.zero_at),
          s.key_fp8 ? fp8_flavour(a) : 0};
}

inline int groups_of(int head_dim) { return (head_dim + kGroup - 1) / kGroup; }

// Centroids of a call; none for fp8 keys.
struct Codebook {
  const float* data;
  int64_t stride;
};

inline Codebook codebook(const Args& a, const SlotFormat& format) {
  if (format.fp8) return {nullptr, 0};
  const TensorView c = a.tensor("centroids");
  return {c.data<float>(), c.stride(0)};
}

struct Cache {
  uint8_t* data;
  int64_t blocks, page;  // page: tokens per block
  int64_t stride[4];     // block, token, head, byte
};

inline Cache cache_of(const Args& a) {
  const TensorView t = a.tensor("kv_cache");
  return {t.data<uint8_t>(),
          t.size(0),
          t.size(1),
          {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
}

struct PageTable {
  Strided<2> ids;
  int64_t columns;
};

inline PageTable page_table(const Args& a) {
  const TensorView t = a.tensor("block_table");
  return {strided<2>(t), t.size(1)};
}

// Offset of a token's slot in the cache, or kMasked where the table has no such token.
inline constexpr int64_t kMasked = INT64_MIN;

DEVICE_FUNCTION int64_t slot_offset(const Cache& cache, int64_t block, int64_t token,
                                    int64_t head) {
  return block * cache.stride[0] + token * cache.stride[1] + head * cache.stride[2];
}

DEVICE_FUNCTION int64_t find_slot(const Cache& cache, const PageTable& table, int64_t row,
                                  int64_t token, int64_t head) {
  const int64_t column = token / cache.page;
  if (column >= table.columns) return kMasked;
  const int64_t block = load_index(table.ids.data, table.ids.dtype,
                                   row * table.ids.stride[0] + column * table.ids.stride[1]);
  if (block < 0 || block >= cache.blocks) return kMasked;
  return slot_offset(cache, block, token - column * cache.page, head);
}

struct Slot {
  uint8_t* data;
  int64_t step;  // between bytes
};

DEVICE_FUNCTION Slot slot_at(const Cache& cache, int64_t offset) {
  return {cache.data + offset, cache.stride[3]};
}
DEVICE_FUNCTION uint32_t load_byte(const Slot& slot, int at) { return slot.data[at * slot.step]; }
DEVICE_FUNCTION void store_byte(const Slot& slot, int at, uint32_t byte) {
  slot.data[at * slot.step] = static_cast<uint8_t>(byte);
}

DEVICE_FUNCTION float load_half(const Slot& slot, int at) {
  const uint32_t bits = load_byte(slot, at) | load_byte(slot, at + 1) << 8;
  return device::to_float(device::bit_cast<device::f16>(static_cast<uint16_t>(bits)));
}
DEVICE_FUNCTION void store_half(const Slot& slot, int at, float value) {
  const uint32_t bits = device::bit_cast<uint16_t>(device::from_float<device::f16>(value));
  store_byte(slot, at, bits & 0xff);
  store_byte(slot, at + 1, bits >> 8);
}

// The codes of elements [8 group, 8 group + 8) as one word, element e at bit e * bits. Reads only
// bytes of the stream [at, at + bytes): what follows are other fields.
DEVICE_FUNCTION uint64_t load_group(const Slot& slot, int at, int bytes, int bits, int group) {
  const int first = group * bits;
  const int count = bytes - first < bits ? bytes - first : bits;
  uint64_t word = 0;
  for (int i = 0; i < count; ++i) word |= uint64_t{load_byte(slot, at + first + i)} << (8 * i);
  return word;
}
DEVICE_FUNCTION void store_group(const Slot& slot, int at, int bytes, int bits, int group,
                                 uint64_t word) {
  const int first = group * bits;
  const int count = bytes - first < bits ? bytes - first : bits;
  for (int i = 0; i < count; ++i)
    store_byte(slot, at + first + i, static_cast<uint32_t>(word >> (8 * i)) & 0xff);
}

DEVICE_FUNCTION int code_of(uint64_t word, int bits, int element) {
  return static_cast<int>(word >> (element * bits)) & ((1 << bits) - 1);
}

// One value code, for threads that own an element. The second byte is read only where the code
// reaches into it.
DEVICE_FUNCTION int load_value_code(const Slot& slot, const SlotFormat& format, int element) {
  const int bit = element * format.value_bits;
  const int shift = bit & 7;
  uint32_t bits = load_byte(slot, format.value_at + (bit >> 3));
  if (shift + format.value_bits > 8) bits |= load_byte(slot, format.value_at + (bit >> 3) + 1) << 8;
  return static_cast<int>(bits >> shift) & ((1 << format.value_bits) - 1);
}

DEVICE_FUNCTION float decode_fp8(tk_dtype flavour, int byte) {
  const uint8_t b = static_cast<uint8_t>(byte);
  if (flavour == TK_E4M3FNUZ) return device::decode_e4m3fnuz(b);
  if (flavour == TK_E4B15) return device::decode_e4b15(b);
  return device::decode_e4m3fn(b);
}
DEVICE_FUNCTION uint32_t encode_fp8(tk_dtype flavour, float x) {
  if (flavour == TK_E4M3FNUZ) return device::encode_e4m3fnuz(x);
  if (flavour == TK_E4B15) return device::encode_e4b15(x);
  return device::encode_e4m3fn(x);
}

// A key code as a number: the fp8 byte's value, or the centroid.
DEVICE_FUNCTION float key_element(const SlotFormat& format, const Codebook& book, int code) {
  return format.fp8 ? decode_fp8(format.fp8, code) : book.data[code * book.stride];
}

}  // namespace tq
