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

// Slots as 32-bit numbers: the host refuses caches that have more.
template <class Slots, class Tokens>
struct LastWriter {
  Slots& slots;    // shared, int32_t [kWriterEntries]
  Tokens& tokens;  // shared, int32_t [kWriterEntries]: the last token of the slot

  DEVICE_FUNCTION static int first_entry(int32_t slot) {
    return static_cast<int>(static_cast<uint32_t>(slot) * 2654435761u >> 22);  // 10 bits
  }
  // The entry of a slot, -1: none.
  DEVICE_FUNCTION int find(int32_t slot) const {
    DEVICE_ROLLED
    for (int entry = first_entry(slot);; entry = (entry + 1) & (kWriterEntries - 1)) {
      const int32_t there = slots[entry];
      if (there == slot) return entry;
      if (there == kNoSlot) return -1;
    }
  }
  // All threads of the block; tokens [begin, end) are the block's, `end` - `begin` <=
  // kWriterTokens. Contains barriers.
  DEVICE_FUNCTION void collect(const Source& s, int64_t begin, int64_t end) {
    DEVICE_ROLLED
    for (int i = device::thread(); i < kWriterEntries; i += device::threads()) {
      slots[i] = kNoSlot;
      tokens[i] = -1;
    }
    device::sync_block();
    DEVICE_ROLLED
    for (int64_t t = begin + device::thread(); t < end; t += device::threads()) {
      const int32_t slot = static_cast<int32_t>(slot_of(s, t));
      if (slot < 0) continue;
      int entry = first_entry(slot);
      DEVICE_ROLLED
      for (;; entry = (entry + 1) & (kWriterEntries - 1)) {
        const int32_t there = device::atomic_cas(&slots[entry], kNoSlot, slot);
        if (there == kNoSlot || there == slot) break;
      }
      device::atomic_max(&tokens[entry], static_cast<int32_t>(t));
    }
    device::sync_block();
    if (s.slot_mapping.dtype == TK_I64)
      scan<int64_t>(s, end);
    else
      scan<int32_t>(s, end);
    device::sync_block();
  }
  // Tokens from `begin` on that want a slot of ours take it. Most slots hit an empty entry.
  template <class Index>
  DEVICE_FUNCTION void scan(const Source& s, int64_t begin) {
    constexpr int kBatch = 8;  // loads in flight
    const auto* mapping = static_cast<const Index*>(s.slot_mapping.data);
    DEVICE_ROLLED
    for (int64_t t = begin + device::thread(); t < s.tokens;
         t += int64_t{device::threads()} * kBatch) {
      Index slot[kBatch];
      DEVICE_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = t + int64_t{i} * device::threads();
        slot[i] = at < s.tokens ? mapping[at * s.slot_mapping.stride[0]] : Index{-1};
      }
      uint32_t taken = 0;
      DEVICE_UNROLL
      for (int i = 0; i < kBatch; ++i)
        if (slots[first_entry(static_cast<int32_t>(slot[i]))] != kNoSlot) taken |= 1u << i;
      DEVICE_ROLLED
      for (int i = 0; taken >> i; ++i) {
        if (!(taken >> i & 1)) continue;
        const int64_t token = t + int64_t{i} * device::threads();
        if (token >= s.tokens) break;
        const int64_t wanted = slot_of(s, token);
        const int entry = wanted < 0 ? -1 : find(static_cast<int32_t>(wanted));
        if (entry >= 0) device::atomic_max(&tokens[entry], static_cast<int32_t>(token));
      }
    }
  }
  // The slot that a token of the block writes, kNoSlot: none.
  DEVICE_FUNCTION int32_t slot_to_write(const Source& s, int64_t token) const {
    const int32_t slot = static_cast<int32_t>(slot_of(s, token));
    if (slot < 0) return kNoSlot;
    return tokens[find(slot)] == static_cast<int32_t>(token) ? slot : kNoSlot;
  }
};

}  // namespace tq::encode
