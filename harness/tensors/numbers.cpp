// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

namespace harness {

namespace {

// A float of at most 16 bits: sign, exponent, mantissa.
struct Small {
  int exponent_bits, mantissa_bits, bias;
  uint32_t largest;                  // code of the largest finite number, sign off
  std::optional<uint32_t> infinity;  // code of +inf
  std::optional<uint32_t> nan;       // the NaN we write
  bool overflows_to_infinity;
};

const Small* small(tk_dtype d) {
  static const Small f16{5, 10, 15, 0x7bff, 0x7c00, 0x7e00, true};
  static const Small bf16{8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, true};
  static const Small e4m3fn{4, 3, 7, 0x7e, std::nullopt, 0x7f, false};
  static const Small e4m3fnuz{4, 3, 8, 0x7f, std::nullopt, 0x80, false};
  static const Small e4b15{4, 3, 15, 0x7f, std::nullopt, std::nullopt, false};
  static const Small e5m2{5, 2, 15, 0x7b, 0x7c, 0x7e, false};
  switch (d) {
    case TK_F16:
      return &f16;
    case TK_BF16:
      return &bf16;
    case TK_E4M3FN:
      return &e4m3fn;
    case TK_E4M3FNUZ:
      return &e4m3fnuz;
    case TK_E4B15:
      return &e4b15;
    case TK_E5M2:
      return &e5m2;
    default:
      return nullptr;
  }
}

double decode_small(tk_dtype d, const Small& s, uint32_t bits) {
  const uint32_t sign = uint32_t{1} << (s.exponent_bits + s.mantissa_bits);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (d == TK_E4M3FNUZ && bits == sign) return nan;  // where -0 would be
  const uint32_t code = bits & (sign - 1);
  const double negative = bits & sign ? -1.0 : 1.0;
  if (s.infinity && code == *s.infinity) return negative * std::numeric_limits<double>::infinity();
  if (s.nan && d != TK_E4M3FNUZ && code > s.largest) return nan;
  const int exponent = int(code >> s.mantissa_bits);
  const uint32_t mantissa = code & ((uint32_t{1} << s.mantissa_bits) - 1);
  if (exponent == 0) return negative * std::ldexp(double(mantissa), 1 - s.bias - s.mantissa_bits);
  return negative * std::ldexp(double(mantissa + (uint32_t{1} << s.mantissa_bits)),
                               exponent - s.bias - s.mantissa_bits);
}

uint32_t encode_small(tk_dtype d, const Small& s, double value) {
  const uint32_t sign_bit = uint32_t{1} << (s.exponent_bits + s.mantissa_bits);
  const uint32_t sign = std::signbit(value) ? sign_bit : 0;
  if (std::isnan(value)) return s.nan ? *s.nan : s.largest;
  if (std::isinf(value)) return sign | (s.infinity ? *s.infinity : s.largest);
  uint32_t code = 0;
  if (value != 0) {
    int exponent;
    std::frexp(value, &exponent);
    const int e = std::max(
        exponent - 1, 1 - s.bias);  // below the smallest normal: its exponent, as subnormals have
    // Exact scaling, then the one rounding. A carry into the next binade comes out right: the codes
    // are consecutive.
    const double steps = std::nearbyint(std::ldexp(std::fabs(value), s.mantissa_bits - e));
    const double wide = std::ldexp(double(e + s.bias - 1), s.mantissa_bits) + steps;
    if (wide > s.largest)
      code = s.overflows_to_infinity ? *s.infinity : s.largest;
    else
      code = uint32_t(wide);
  }
  if (d == TK_E4M3FNUZ && code == 0) return 0;  // no -0
  return sign | code;
}

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void store(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

template <class T>
void store_rounded(std::byte* p, double value) {
  const double r = std::nearbyint(value);
  T v = 0;  // NaN
  if (r >= std::ldexp(1.0, std::numeric_limits<T>::digits))
    v = std::numeric_limits<T>::max();
  else if (r <= double(std::numeric_limits<T>::lowest()))
    v = std::numeric_limits<T>::lowest();
  else if (r == r)
    v = T(r);
  store<T>(p, v);
}

[[noreturn]] void no_integer(tk_dtype d) {
  throw std::invalid_argument("expected integers, got " + std::string(toolkit::name_of(d)));
}

}  // namespace

bool is_float(tk_dtype d) { return small(d) || d == TK_F32 || d == TK_F64; }

double decode_real(tk_dtype d, const std::byte* p) {
  if (const Small* s = small(d))
    return decode_small(d, *s, toolkit::bytes_of(d) == 2 ? load<uint16_t>(p) : load<uint8_t>(p));
  if (d == TK_F32) return load<float>(p);
  if (d == TK_F64) return load<double>(p);
  if (d == TK_U64) return double(load<uint64_t>(p));
  return double(decode_integer(d, p));
}

int64_t decode_integer(tk_dtype d, const std::byte* p) {
  switch (d) {
    case TK_BOOL:
    case TK_U8:
      return load<uint8_t>(p);
    case TK_I8:
      return load<int8_t>(p);
    case TK_I16:
      return load<int16_t>(p);
    case TK_U16:
      return load<uint16_t>(p);
    case TK_I32:
      return load<int32_t>(p);
    case TK_U32:
      return load<uint32_t>(p);
    case TK_I64:
      return load<int64_t>(p);
    case TK_U64:
      return int64_t(load<uint64_t>(p));
    default:
      no_integer(d);
  }
}

void encode_real(tk_dtype d, double value, std::byte* p) {
  if (const Small* s = small(d)) {
    const uint32_t code = encode_small(d, *s, value);
    toolkit::bytes_of(d) == 2 ? store<uint16_t>(p, uint16_t(code))
                              : store<uint8_t>(p, uint8_t(code));
    return;
  }
  switch (d) {
    case TK_F32:
      return store<float>(p, float(value));
    case TK_F64:
      return store<double>(p, value);
    case TK_BOOL:
      return store<uint8_t>(p, value != 0);
    case TK_U8:
      return store_rounded<uint8_t>(p, value);
    case TK_I8:
      return store_rounded<int8_t>(p, value);
    case TK_I16:
      return store_rounded<int16_t>(p, value);
    case TK_U16:
      return store_rounded<uint16_t>(p, value);
    case TK_I32:
      return store_rounded<int32_t>(p, value);
    case TK_U32:
      return store_rounded<uint32_t>(p, value);
    case TK_I64:
      return store_rounded<int64_t>(p, value);
    case TK_U64:
      return store_rounded<uint64_t>(p, value);
    default:
      throw std::invalid_argument("a number cannot be stored in " +
                                  std::string(toolkit::name_of(d)));
  }
}

void encode_integer(tk_dtype d, int64_t v, std::byte* p) {
  if (is_float(d)) return encode_real(d, double(v), p);
  if (d == TK_BOOL) return store<uint8_t>(p, v != 0);
  switch (toolkit::bytes_of(d)) {
    case 1:
      return store<uint8_t>(p, uint8_t(v));
    case 2:
      return store<uint16_t>(p, uint16_t(v));
    case 4:
      return store<uint32_t>(p, uint32_t(v));
    case 8:
      return store<int64_t>(p, v);
    default:
      no_integer(d);
  }
}

}  // namespace harness
