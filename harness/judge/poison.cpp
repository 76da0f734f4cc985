// SPDX-License-Identifier: Apache-2.0
#include "harness/judge/poison.h"

#include <algorithm>
#include <cstring>

#include "harness/tensors/walk.h"
#include "reference/parallel.h"

namespace harness {

namespace {
constexpr uint8_t kF64[] = {0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0xfa, 0x7f};
constexpr uint8_t kF32[] = {0x5a, 0x5a, 0xda, 0x7f};
constexpr uint8_t kF16[] = {0x5a, 0x7e};
constexpr uint8_t kBf16[] = {0xda, 0x7f};
constexpr uint8_t kE4m3fn[] = {0x7f};  // the formats of one byte have one NaN, or none
constexpr uint8_t kE4m3fnuz[] = {0x80};
constexpr uint8_t kE5m2[] = {0x7e};
constexpr uint8_t kInteger[] = {0x5a, 0x5a, 0x5a, 0x5a,
                                0x5a, 0x5a, 0x5a, 0x5a};  // also e4b15: 0.8125
}  // namespace

std::span<const uint8_t> output_poison(tk_dtype dtype) {
  switch (dtype) {
    case TK_F64:
      return kF64;
    case TK_F32:
      return kF32;
    case TK_F16:
      return kF16;
    case TK_BF16:
      return kBf16;
    case TK_E4M3FN:
      return kE4m3fn;
    case TK_E4M3FNUZ:
      return kE4m3fnuz;
    case TK_E5M2:
      return kE5m2;
    default:
      return std::span(kInteger).first(size_t(toolkit::bytes_of(dtype)));
  }
}

void poison(Tensor& t) {
  const auto pattern = output_poison(t.dtype);
  if (t.dense()) {  // in parts on all cores: outputs of gigabytes are touched for the first time
                    // here
    constexpr int64_t kPart = 1 << 20;
    const int64_t n = t.count();
    reference::for_each_row((n + kPart - 1) / kPart, [&](int64_t part) {
      std::byte* p = t.data() + part * kPart * int64_t(pattern.size());
      for (int64_t i = part * kPart; i < std::min(n, (part + 1) * kPart); ++i, p += pattern.size())
        std::memcpy(p, pattern.data(), pattern.size());
    });
    return;
  }
  walk(t, [&](int64_t, std::byte* p) { std::memcpy(p, pattern.data(), pattern.size()); });
}

bool is_output_poison(tk_dtype dtype, const std::byte* element) {
  const auto pattern = output_poison(dtype);
  return !pattern.empty() && std::memcmp(element, pattern.data(), pattern.size()) == 0;
}

}  // namespace harness
