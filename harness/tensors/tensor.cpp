// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "harness/tensors/numbers.h"
#include "harness/tensors/walk.h"

namespace harness {

namespace {

class HeapStorage final : public Storage {
 public:
  explicit HeapStorage(size_t bytes) : Storage(allocate(bytes), bytes) {}
  ~HeapStorage() override {
    void* p;
    std::memcpy(&p, data_ - sizeof p, sizeof p);
    std::free(p);
  }

 private:
  static std::byte* allocate(size_t bytes) {
    const size_t room =
        (bytes / 64 + 1) * 64;  // never empty, so that data() of an empty tensor is an address too
    if (room < bytes || room + 64 < room) throw std::bad_alloc();
    // Zeros that the host gives at first touch: gigabytes are not written twice, and not by one core.
    std::byte* p = static_cast<std::byte*>(std::calloc(room + 64, 1));
    if (!p) throw std::bad_alloc();
    std::byte* aligned = p + (64 - reinterpret_cast<uintptr_t>(p) % 64);
    std::memcpy(aligned - sizeof p, &p, sizeof p);  // what has to be freed; malloc aligns by 16
    return aligned;
  }
};

// Product of sizes; std::length_error where it leaves int64 (zero sizes do not hide the others).
int64_t checked_count(const Shape& shape) {
  int64_t n = 1;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0)
      throw std::invalid_argument("shape " + toolkit::to_text(shape) + " has a negative size");
    if (size == 0)
      empty = true;
    else if (__builtin_mul_overflow(n, size, &n))
      throw std::length_error("shape " + toolkit::to_text(shape) +
                              " has more elements than 64 bits count");
  }
  return empty ? 0 : n;
}

}  // namespace

std::shared_ptr<Storage> Storage::heap(size_t bytes) {
  return std::make_shared<HeapStorage>(bytes);
}

int64_t Tensor::count() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

bool Tensor::dense() const {
  if (count() == 0) return true;
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

int64_t Tensor::at(const Shape& index) const {
  int64_t elements = 0;
  for (size_t d = 0; d < shape.size(); ++d) elements += index.at(d) * strides[d];
  return elements * toolkit::bytes_of(dtype);
}

std::byte* Tensor::element(int64_t linear) const {
  int64_t elements = 0;
  for (size_t d = shape.size(); d-- > 0;) {
    elements += linear % shape[d] * strides[d];
    linear /= shape[d];
  }
  return data() + elements * toolkit::bytes_of(dtype);
}

Tensor Tensor::packed() const {
  Tensor out = make_tensor(dtype, shape);
  out.fp8_flavour = fp8_flavour;
  const size_t bytes = size_t(toolkit::bytes_of(dtype));
  if (dense()) {
    std::memcpy(out.data(), data(), size_t(count()) * bytes);
  } else {
    std::byte* to = out.data();
    walk(*this, [&](int64_t, const std::byte* from) {
      std::memcpy(to, from, bytes);
      to += bytes;
    });
  }
  return out;
}

double Tensor::real(int64_t linear) const { return decode_real(dtype, element(linear)); }
int64_t Tensor::integer(int64_t linear) const { return decode_integer(dtype, element(linear)); }
void Tensor::set_real(int64_t linear, double v) { encode_real(dtype, v, element(linear)); }
void Tensor::set_integer(int64_t linear, int64_t v) { encode_integer(dtype, v, element(linear)); }

Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d] > 1 ? shape[d] : 1;
  }
  return strides;
}

Tensor make_tensor(tk_dtype dtype, Shape shape) {
  const int bytes = toolkit::bytes_of(dtype);
  if (bytes == 0) throw std::invalid_argument("a tensor of unknown dtype " + std::to_string(dtype));
  int64_t room = checked_count(shape);
  if (__builtin_mul_overflow(room, int64_t{bytes}, &room))
    throw std::length_error("shape " + toolkit::to_text(shape) +
                            " has more bytes than 64 bits count");
  Tensor t;
  t.dtype = dtype;
  t.strides = dense_strides(shape);
  t.shape = std::move(shape);
  t.storage = Storage::heap(size_t(room));
  return t;
}

Tensor view(const Tensor& base, int64_t offset_elements, Shape shape, Shape strides) {
  const std::string text = "view offset " + std::to_string(offset_elements) + " shape " +
                           toolkit::to_text(shape) + " strides " + toolkit::to_text(strides);
  if (shape.size() != strides.size())
    throw std::out_of_range(text + ": as many strides as sizes are needed");
  const int64_t bytes = toolkit::bytes_of(base.dtype);
  const int64_t count = checked_count(shape);
  int64_t lowest = 0, highest = 0, shift = 0, offset = 0;
  bool wraps = __builtin_mul_overflow(offset_elements, bytes, &shift);
  wraps = wraps || __builtin_add_overflow(base.offset, shift, &offset);
  for (size_t d = 0; count > 0 && d < shape.size(); ++d) {
    int64_t reach = 0;
    wraps = wraps || __builtin_mul_overflow(shape[d] - 1, strides[d], &reach);
    int64_t& end = reach < 0 ? lowest : highest;
    wraps = wraps || __builtin_add_overflow(end, reach, &end);
  }
  int64_t first = 0, last = 0;  // bytes in the storage
  wraps = wraps || __builtin_mul_overflow(lowest, bytes, &first) ||
          __builtin_add_overflow(first, offset, &first);
  wraps = wraps || __builtin_mul_overflow(highest, bytes, &last) ||
          __builtin_add_overflow(last, offset, &last);
  const int64_t end = int64_t(base.storage->bytes());
  const bool outside = count > 0 ? first < 0 || last > end - bytes : offset < 0 || offset > end;
  if (wraps || outside)
    throw std::out_of_range(text + " reaches outside its storage of " +
                            std::to_string(end / bytes) + " elements");
  Tensor t = base;
  t.offset = offset;
  t.shape = std::move(shape);
  t.strides = std::move(strides);
  return t;
}

}  // namespace harness
