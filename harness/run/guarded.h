// SPDX-License-Identifier: Apache-2.0
// Device memory between two guard bands, so that a write beside a tensor is seen and a read beside
// it gives NaN.
#pragma once

#include <cstdint>
#include <string>

#include "harness/plugins/device.h"

namespace harness {

class GuardedMemory {
 public:
  GuardedMemory(const Device& device, uint64_t bytes);
  std::byte* data() const { return memory_.data() + kBand; }
  uint64_t bytes() const { return bytes_; }
  void write(const void* from) const { memory_.write(kBand, from, bytes_); }
  void read(void* to) const { memory_.read(kBand, to, bytes_); }
  void read(uint64_t offset, void* to, uint64_t bytes) const {
    memory_.read(kBand + offset, to, bytes);
  }
  void fill(uint8_t byte) const;
  // Where a band was written: "17 bytes before its first byte"; empty where both are whole.
  std::string damage() const;

  static constexpr uint64_t kBand = 64 << 10;

 private:
  uint64_t bytes_;
  DeviceMemory memory_;
};

}  // namespace harness
