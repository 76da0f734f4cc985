// SPDX-License-Identifier: Apache-2.0
#include "harness/run/guarded.h"

#include <fmt/format.h>

#include <vector>

namespace harness {

namespace {

// 0xffa5 in every 16 bits: a NaN as f32, f16, bf16 and (its high byte) e4m3fn, a negative number as
// an id. A constant byte such as 0xff would hide a stray -1 or a stray NaN that a kernel writes
// there.
std::vector<uint8_t> band() {
  std::vector<uint8_t> bytes(GuardedMemory::kBand);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 ? 0xff : 0xa5;
  return bytes;
}

}  // namespace

GuardedMemory::GuardedMemory(const Device& device, uint64_t bytes)
    : bytes_(bytes), memory_(device, bytes + 2 * kBand) {
  const auto pattern = band();
  memory_.write(0, pattern.data(), kBand);
  memory_.write(kBand + bytes, pattern.data(), kBand);
}

void GuardedMemory::fill(uint8_t byte) const {
  const std::vector<uint8_t> content(bytes_, byte);
  write(content.data());
}

std::string GuardedMemory::damage() const {
  const auto pattern = band();
  std::vector<uint8_t> got(kBand);
  memory_.read(0, got.data(), kBand);
  for (uint64_t i = kBand; i-- > 0;)
    if (got[i] != pattern[i]) return fmt::format("{} bytes before its first byte", kBand - i);
  memory_.read(kBand + bytes_, got.data(), kBand);
  for (uint64_t i = 0; i < kBand; ++i)
    if (got[i] != pattern[i]) return fmt::format("{} bytes behind its last byte", i + 1);
  return {};
}

}  // namespace harness
