// SPDX-License-Identifier: Apache-2.0
// Reads strided host tensors for the oracles.
#pragma once

#include <cstddef>
#include <cstring>

#include "reference/numbers.h"
#include "toolkit/args.h"

namespace reference {

class Reader {
 public:
  explicit Reader(toolkit::TensorView t)
      : t_(t),
        dtype_(t.fp8_flavour() ? t.fp8_flavour() : t.dtype()),
        bytes_(toolkit::bytes_of(t.dtype())) {}

  const toolkit::TensorView& view() const { return t_; }
  int64_t size(int dim) const { return t_.size(dim); }
  int64_t count() const { return t_.count(); }
  int element_bytes() const { return bytes_; }

  // Element (i, j, ...): one index per dimension.
  template <class... I>
  const std::byte* at(I... index) const {
    const int64_t indices[] = {int64_t(index)...};
    int64_t offset = 0;
    for (size_t d = 0; d < sizeof...(I); ++d) offset += indices[d] * t_.stride(int(d));
    return t_.data<const std::byte>() + offset * bytes_;
  }
  // Element number `linear` in row-major order of the shape.
  const std::byte* at_linear(int64_t linear) const {
    int64_t offset = 0;
    for (int d = t_.rank() - 1; d >= 0; --d) {
      offset += linear % t_.size(d) * t_.stride(d);
      linear /= t_.size(d);
    }
    return t_.data<const std::byte>() + offset * bytes_;
  }
  template <class... I>
  double real(I... index) const {
    return real_at(at(index...));
  }
  template <class... I>
  int64_t integer(I... index) const {
    return integer_at(at(index...));
  }
  double real_linear(int64_t linear) const { return real_at(at_linear(linear)); }
  int64_t integer_linear(int64_t linear) const { return integer_at(at_linear(linear)); }

  // The last dimension at the given leading indices, into out[0..size).
  template <class... I>
  void row(double* out, I... leading) const {
    const int last = t_.rank() - 1;
    const std::byte* p = at(leading..., 0);
    const int64_t step = t_.stride(last) * bytes_;
    for (int64_t d = 0; d < t_.size(last); ++d, p += step) out[d] = real_at(p);
  }

  uint64_t bits_at(const std::byte* p) const {
    uint64_t bits = 0;
    std::memcpy(&bits, p, size_t(bytes_));  // little endian
    return bits;
  }
  double real_at(const std::byte* p) const {
    if (dtype_ == TK_F32) {  // the host's float is IEEE binary32
      float v;
      std::memcpy(&v, p, sizeof v);
      return v;
    }
    if (dtype_ == TK_BF16) {  // its upper half
      uint16_t half;
      std::memcpy(&half, p, sizeof half);
      const uint32_t bits = uint32_t{half} << 16;
      float v;
      std::memcpy(&v, &bits, sizeof v);
      return v;
    }
    return is_float(dtype_) || dtype_ == TK_F64 ? decode(dtype_, bits_at(p))
                                                : double(integer_at(p));
  }
  int64_t integer_at(const std::byte* p) const {
    const uint64_t bits = bits_at(p);
    switch (dtype_) {
      case TK_I8:
        return int8_t(bits);
      case TK_I16:
        return int16_t(bits);
      case TK_I32:
        return int32_t(bits);
      default:
        return int64_t(bits);
    }
  }

 private:
  toolkit::TensorView t_;
  tk_dtype dtype_;
  int bytes_;
};

}  // namespace reference
