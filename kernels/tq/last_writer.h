// SPDX-License-Identifier: Apache-2.0
// Which tokens of a block write their slots: a slot that several tokens want goes to the last of
// them, whole, because the codes of one token beside the norm of another would be garbage. A block
// hashes the slots of its own tokens and looks for them among all later tokens: no other launch and
// no workspace, and the reads are few beside those of the vectors (kMostTokens bounds them).
#pragma once

#include "tq/encode_item.h"

namespace tq::encode {

inline constexpr int kWriterEntries = 1024;    // a power of two
inline constexpr int kWriterTokens = 514;      // of a block, at most
inline constexpr int64_t kMostTokens = 32768;  // of a launch: later launches overwrite earlier ones
inline constexpr int32_t kNoSlot = -1;

// Shared memory of a block. Slots as 32-bit numbers: the host refuses caches that have more.
struct WriterTables {
  uint32_t filter[kWriterEntries];  // bits of the block's slots: nearly no other slot hits one
  int32_t slots[kWriterEntries];
  int32_t tokens[kWriterEntries];  // the last token of the slot
  int64_t target[kWriterTokens];   // where a token of the block writes head 0; kMasked: nowhere
};

DEVICE_FUNCTION uint32_t hash_of_slot(int32_t slot) {
  return static_cast<uint32_t>(slot) * 2654435761u;
}
DEVICE_FUNCTION int first_entry(int32_t slot) {
  return static_cast<int>(hash_of_slot(slot) >> 22);  // 10 bits
}
DEVICE_FUNCTION uint32_t filter_bit(int32_t slot) { return 1u << (hash_of_slot(slot) >> 17 & 31); }

// Tokens [begin, end) are the block's, kWriterTokens at most. All threads of the block take all
// steps, clear() first, with a barrier after each of them; then `target` is written.
class LastWriter {
 public:
  // Reads ahead.
  DEVICE_FUNCTION LastWriter(const Source& s, WriterTables& tables, int begin, int end)
      : s_(s), t_(tables), begin_(begin), end_(end) {
    const int token = begin_ + device::thread();
    own_ = token < end_ ? load_index(s_.slot_mapping.data, s_.slot_mapping.dtype,
                                     token * s_.slot_mapping.stride[0])
                        : kNoSlot;
    fetch(end_ + device::thread());
  }
  DEVICE_FUNCTION void clear() {
    DEVICE_ROLLED
    for (int i = device::thread(); i < kWriterEntries; i += device::threads()) {
      t_.filter[i] = 0;
      t_.slots[i] = kNoSlot;
      t_.tokens[i] = -1;
    }
  }
  DEVICE_FUNCTION void enter() {
    if (!in_cache(s_, own_)) own_ = kNoSlot;
    enter(static_cast<int32_t>(own_), begin_ + device::thread());
    DEVICE_ROLLED
    for (int t = begin_ + device::thread() + device::threads(); t < end_; t += device::threads())
      enter(wanted_slot(t), t);
  }
  DEVICE_FUNCTION void scan() {
    DEVICE_ROLLED
    for (int t = end_ + device::thread(); t < s_.tokens;) {
      uint32_t hits = 0;
      DEVICE_UNROLL
      for (int i = 0; i < kBatch; ++i)
        if (t_.filter[first_entry(ahead_[i])] & filter_bit(ahead_[i])) hits |= 1u << i;
      DEVICE_ROLLED
      for (int i = 0; hits >> i; ++i)
        if (hits >> i & 1) take(t + i * device::threads());
      t += device::threads() * kBatch;
      if (t < s_.tokens) fetch(t);
    }
  }
  DEVICE_FUNCTION void settle() {
    settle(static_cast<int32_t>(own_), begin_ + device::thread());
    DEVICE_ROLLED
    for (int t = begin_ + device::thread() + device::threads(); t < end_; t += device::threads())
      settle(wanted_slot(t), t);
  }

 private:
  static constexpr int kBatch = 8;  // loads in flight

  DEVICE_FUNCTION int32_t wanted_slot(int token) const {
    return static_cast<int32_t>(slot_of(s_, token));
  }
  // Low words are enough to look for.
  DEVICE_FUNCTION void fetch(int t) {
    const int64_t bytes = s_.slot_mapping.stride[0] * (s_.slot_mapping.dtype == TK_I64 ? 8 : 4);
    const auto* at = static_cast<const uint8_t*>(s_.slot_mapping.data) + t * bytes;
    const int64_t step = device::threads() * bytes;
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const bool there = t + i * device::threads() < s_.tokens;
      ahead_[i] = there ? *reinterpret_cast<const int32_t*>(at) : kNoSlot;
      at += step;
    }
  }
  // The entry of a slot, -1: none.
  DEVICE_FUNCTION int find(int32_t slot) const {
    DEVICE_ROLLED
    for (int entry = first_entry(slot);; entry = (entry + 1) & (kWriterEntries - 1)) {
      const int32_t there = t_.slots[entry];
      if (there == slot) return entry;
      if (there == kNoSlot) return -1;
    }
  }
  DEVICE_FUNCTION void enter(int32_t slot, int token) {
    if (slot < 0) return;
    device::atomic_or(&t_.filter[first_entry(slot)], filter_bit(slot));
    int entry = first_entry(slot);
    DEVICE_ROLLED
    for (;; entry = (entry + 1) & (kWriterEntries - 1)) {
      const int32_t there = device::atomic_cas(&t_.slots[entry], kNoSlot, slot);
      if (there == kNoSlot || there == slot) break;
    }
    device::atomic_max(&t_.tokens[entry], token);
  }
  // A later token takes its slot, should it be one of ours.
  DEVICE_FUNCTION void take(int token) {
    if (token >= s_.tokens) return;
    const int32_t slot = wanted_slot(token);
    const int entry = slot < 0 ? -1 : find(slot);
    if (entry >= 0) device::atomic_max(&t_.tokens[entry], token);
  }
  DEVICE_FUNCTION void settle(int32_t slot, int token) {
    if (token >= end_) return;
    int64_t target = kMasked;
    if (slot >= 0 && t_.tokens[find(slot)] == token) {
      const uint32_t page = static_cast<uint32_t>(s_.cache.page);
      const uint32_t block = static_cast<uint32_t>(slot) / page;
      target = slot_offset(s_.cache, block, slot - int64_t{block} * page, 0);
    }
    t_.target[token - begin_] = target;
  }

  const Source& s_;
  WriterTables& t_;
  int begin_, end_;
  int64_t own_;
  int32_t ahead_[kBatch];
};

}  // namespace tq::encode
