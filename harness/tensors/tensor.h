// SPDX-License-Identifier: Apache-2.0
// A strided tensor in host memory, sharing its storage (a heap buffer or a mapped file) with other views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "toolkit/args.h"

namespace harness {

using toolkit::Shape;

// Bytes that several tensors may view. Heap storage is zero-initialised, 64-byte aligned.
class Storage {
 public:
  static std::shared_ptr<Storage> heap(size_t bytes);
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;  // views point into it
  Storage& operator=(const Storage&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  Storage(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  size_t bytes_;
};

struct Tensor {
  tk_dtype dtype = 0;
  tk_dtype fp8_flavour = 0;
  Shape shape;
  Shape strides;                     // elements; 0 and negative are legal
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;                // byte of element (0, ..., 0) in the storage

  int64_t count() const;
  bool dense() const;                // row-major without gaps
  std::byte* data() const { return storage->data() + offset; }
  // Byte offset of an element from data().
  int64_t at(const Shape& index) const;
  // A dense copy (own storage).
  Tensor packed() const;

  // Element `linear` in row-major order of `shape`.
  double real(int64_t linear) const;     // bf16, f16, f32, f64, fp8 and integers
  int64_t integer(int64_t linear) const;  // integers and bool
  void set_real(int64_t linear, double v);  // rounded to nearest even in the tensor's dtype, saturating in fp8
  void set_integer(int64_t linear, int64_t v);
  std::byte* element(int64_t linear) const;
};

Shape dense_strides(const Shape& shape);
Tensor make_tensor(tk_dtype dtype, Shape shape);  // dense, zero
// A view of `base`'s storage; refused (toolkit::Violation is not used here: std::out_of_range) where it reaches outside.
Tensor view(const Tensor& base, int64_t offset_elements, Shape shape, Shape strides);

using TensorMap = std::map<std::string, Tensor, std::less<>>;
using ScalarMap = std::map<std::string, std::string, std::less<>>;

}  // namespace harness
