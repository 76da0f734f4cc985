// SPDX-License-Identifier: Apache-2.0
// Reads a TurboQuant cache byte by byte, as kernels/include/tq/slot.h lays it out. float64, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/numbers.h"
#include "reference/reader.h"
#include "tq/slot.h"

namespace reference::tq {

// One slot: byte i lies `step` bytes behind byte i-1 (a cache may be any view).
struct Slot {
  const uint8_t* first;
  int64_t step;
  uint8_t byte(int64_t i) const { return first[i * step]; }
  // Element d of a little-endian bit stream of `bits` per element that starts at byte `at`.
  int code(int64_t at, int64_t bits, int64_t d) const {
    const int64_t bit = d * bits, byte_at = at + bit / 8, shift = bit % 8;
    int window = byte(byte_at);
    if (shift + bits > 8) window |= byte(byte_at + 1) << 8;
    return (window >> shift) & ((1 << bits) - 1);
  }
  double half(int64_t at) const {
    return reference::decode(TK_F16, uint64_t(byte(at)) | uint64_t(byte(at + 1)) << 8);
  }
};

class Cache {
 public:
  Cache(const toolkit::Args& a, int64_t head_dim)
      : layout(::tq::slot_layout(a, head_dim)), view_(a.tensor("kv_cache")) {
    if (layout.key_fp8) {
      for (uint64_t b = 0; b < 256; ++b) numbers_.push_back(reference::decode(::tq::fp8_flavour(a), b));
      return;
    }
    const Reader centroids(a.tensor("centroids"));
    for (int64_t i = 0; i < centroids.count(); ++i) numbers_.push_back(centroids.real(i));
    norm_correction = a.boolean("norm_correction");
  }

  int64_t blocks() const { return view_.size(0); }
  int64_t page() const { return view_.size(1); }
  int64_t heads() const { return view_.size(2); }
  int64_t tokens() const { return blocks() * page(); }

  Slot slot(int64_t block, int64_t position, int64_t head) const {
    return {view_.data<const uint8_t>() + block * view_.stride(0) + position * view_.stride(1) +
                head * view_.stride(2),
            view_.stride(3)};
  }
  // Element d of the stored key without norm: a centroid, or the fp8 number.
  double key(const Slot& s, int64_t d) const {
    return numbers_[layout.key_fp8 ? s.byte(d) : s.code(0, layout.key_bits, d)];
  }
  double norm(const Slot& s) const { return layout.key_fp8 ? 1.0 : s.half(layout.norm_at); }
  // What the centroid vector is divided by: 1 without norm correction.
  double centroid_norm(const Slot& s) const {
    if (!norm_correction) return 1.0;
    double squares = 0;
    for (int64_t d = 0; d < layout.head_dim; ++d) squares += key(s, d) * key(s, d);
    return std::sqrt(squares + 1e-16);
  }
  int value_code(const Slot& s, int64_t d) const { return s.code(layout.value_at, layout.value_bits, d); }
  double value_scale(const Slot& s) const { return s.half(layout.scale_at); }
  double value_zero(const Slot& s) const { return s.half(layout.zero_at); }

  ::tq::SlotLayout layout;
  bool norm_correction = false;  // never with fp8 keys

 private:
  toolkit::TensorView view_;
  std::vector<double> numbers_;  // of a key code: centroids, or all fp8 numbers
};

}  // namespace reference::tq
