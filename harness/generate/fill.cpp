// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/fill.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "harness/tensors/numbers.h"
#include "harness/tensors/walk.h"
#include "reference/parallel.h"

namespace harness {

namespace {

// body(first, last, address of the first) on all cores for stretches of a dense tensor's elements, none longer than kPart:
// an element depends on nothing but its number.
constexpr int64_t kPart = 1 << 16;
template <class Body>
void for_each_part(Tensor& t, const Body& body) {
  const int64_t n = t.count(), bytes = toolkit::bytes_of(t.dtype);
  reference::for_each_row((n + kPart - 1) / kPart, [&](int64_t part) {
    body(part * kPart, std::min(n, (part + 1) * kPart), t.data() + part * kPart * bytes);
  });
}

// body(i, address) for every element.
template <class Body>
void for_each_element(Tensor& t, const Body& body) {
  if (!t.dense()) return walk(t, body);
  for_each_part(t, [&](int64_t first, int64_t last, std::byte* p) {
    for (int64_t i = first; i < last; ++i, p += toolkit::bytes_of(t.dtype)) body(i, p);
  });
}

template <class Number>
void fill_reals(Tensor& t, Number number) {
  for_each_element(
      t, [&](int64_t i, std::byte* p) { encode_real(t.dtype, number(uint64_t(i)), p); });
}

void require_count(size_t values, const Shape& shape) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  if (n != int64_t(values))
    throw std::invalid_argument("expected " + std::to_string(n) + " values for shape " +
                                toolkit::to_text(shape) + ", got " + std::to_string(values));
}

}  // namespace

NormalElement::NormalElement(tk_dtype dtype, double scale, double mean, int64_t elements)
    : dtype_(dtype), scale_(scale), mean_(mean) {
  if (toolkit::bytes_of(dtype) != sizeof(uint16_t) || elements < 4 * int64_t(Random::kNormalSums))
    return;
  std::vector<uint16_t> codes(Random::kNormalSums);
  for (int32_t sum = 0; sum < Random::kNormalSums; ++sum)
    put(sum, reinterpret_cast<std::byte*>(&codes[size_t(sum)]));
  codes_ = std::move(codes);
}

void NormalElement::put(int32_t sum, std::byte* p) const {
  if (!codes_.empty())
    std::memcpy(p, &codes_[size_t(sum)], sizeof(uint16_t));
  else
    encode_real(dtype_, Random::normal_of(sum) * scale_ + mean_, p);
}

void fill_normal(Tensor& t, const Random& random, double scale, double mean) {
  if (!t.dense())
    return fill_reals(t, [&](uint64_t i) { return random.normal(i) * scale + mean; });
  const NormalElement element(t.dtype, scale, mean, t.count());
  for_each_part(t, [&](int64_t first, int64_t last, std::byte* p) {
    std::vector<int32_t> sums(static_cast<size_t>(last - first));
    random.normal_sums(uint64_t(first), last - first, sums.data());
    for (const int32_t sum : sums) {
      element.put(sum, p);
      p += toolkit::bytes_of(t.dtype);
    }
  });
}

void fill_uniform(Tensor& t, const Random& random, double low, double high) {
  fill_reals(t, [&](uint64_t i) { return low + random.uniform(i) * (high - low); });
}

void fill_below(Tensor& t, const Random& random, int64_t n) {
  for_each_element(t, [&](int64_t i, std::byte* p) {
    encode_integer(t.dtype, random.below(uint64_t(i), n), p);
  });
}

void fill_bytes(Tensor& t, const Random& random) {
  const size_t bytes = size_t(toolkit::bytes_of(t.dtype));
  for_each_element(t, [&](int64_t i, std::byte* p) {
    const uint64_t bits = random.bits(uint64_t(i));
    for (size_t b = 0; b < bytes; ++b)
      p[b] = std::byte(bits >> (8 * b));  // the same on hosts of any byte order
  });
}

void fill_real(Tensor& t, double value) {
  fill_reals(t, [&](uint64_t) { return value; });
}

void fill_integer(Tensor& t, int64_t value) {
  walk(t, [&](int64_t, std::byte* p) { encode_integer(t.dtype, value, p); });
}

void fill_poison(Tensor& t) {
  const size_t bytes = size_t(toolkit::bytes_of(t.dtype));
  walk(t, [&](int64_t, std::byte* p) { std::memset(p, 0xff, bytes); });
}

void poison_storage(Tensor& t) {
  // In parts on all cores: the first touch of gigabytes is what costs.
  constexpr int64_t kStretch = 64 << 20;
  const int64_t bytes = int64_t(t.storage->bytes());
  reference::for_each_row((bytes + kStretch - 1) / kStretch, [&](int64_t i) {
    std::memset(t.storage->data() + i * kStretch, 0xff,
                size_t(std::min(kStretch, bytes - i * kStretch)));
  });
}

Tensor from_integers(tk_dtype dtype, const std::vector<int64_t>& values) {
  return from_integers(dtype, values, {int64_t(values.size())});
}

Tensor from_integers(tk_dtype dtype, const std::vector<int64_t>& values, Shape shape) {
  require_count(values.size(), shape);
  Tensor t = make_tensor(dtype, std::move(shape));
  walk(t, [&](int64_t i, std::byte* p) { encode_integer(dtype, values[size_t(i)], p); });
  return t;
}

Tensor from_reals(tk_dtype dtype, const std::vector<double>& values, Shape shape) {
  require_count(values.size(), shape);
  Tensor t = make_tensor(dtype, std::move(shape));
  walk(t, [&](int64_t i, std::byte* p) { encode_real(dtype, values[size_t(i)], p); });
  return t;
}

}  // namespace harness
