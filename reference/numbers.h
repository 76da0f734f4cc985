// SPDX-License-Identifier: Apache-2.0
// Number formats of the oracles, written from their definitions: decode to float64, round, encode,
// unit in the last place. Shares nothing with the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "toolkit/dtype.h"

namespace reference {

// A binary floating format: sign, exponent field, mantissa field.
struct Format {
  int mantissa_bits;  // explicit ones
  int exponent_bits;
  int bias;
  double largest;  // largest finite value
  enum Special : uint8_t {
    ieee,          // the highest exponent holds inf and NaN
    nan_all_ones,  // e4m3fn: only the all-ones code is NaN
    nan_minus_0,   // e4m3fnuz: the code of -0 is NaN
    none           // e4b15: every code is a number
  } special;
  int lowest_exponent() const { return 1 - bias; }  // of the normal numbers
};

inline bool is_float(tk_dtype d) {
  return d == TK_F16 || d == TK_BF16 || d == TK_F32 || d == TK_E4M3FN || d == TK_E4M3FNUZ ||
         d == TK_E4B15 || d == TK_E5M2;
}

inline Format format_of(tk_dtype d) {
  switch (d) {
    case TK_F16:
      return {10, 5, 15, 65504.0, Format::ieee};
    case TK_BF16:
      return {7, 8, 127, 0x1.fep127, Format::ieee};
    case TK_F32:
      return {23, 8, 127, 0x1.fffffep127, Format::ieee};
    case TK_E4M3FN:
      return {3, 4, 7, 448.0, Format::nan_all_ones};
    case TK_E4M3FNUZ:
      return {3, 4, 8, 240.0, Format::nan_minus_0};
    case TK_E4B15:
      return {3, 4, 15, 1.875, Format::none};
    case TK_E5M2:
      return {2, 5, 15, 57344.0, Format::ieee};
    default:
      throw std::logic_error("format_of: not a floating dtype");
  }
}

// Unit roundoff: the largest relative error of rounding to nearest in the normal range.
inline double roundoff(tk_dtype d) { return std::ldexp(1.0, -format_of(d).mantissa_bits - 1); }

// The value of a code.
inline double decode(tk_dtype d, uint64_t bits) {
  if (d == TK_F64) {
    double v;
    static_assert(sizeof v == sizeof bits);
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
  }
  const Format f = format_of(d);
  const uint64_t mantissa = bits & ((uint64_t{1} << f.mantissa_bits) - 1);
  const uint64_t top = (uint64_t{1} << f.exponent_bits) - 1;
  const uint64_t exponent = (bits >> f.mantissa_bits) & top;
  const bool negative = (bits >> (f.mantissa_bits + f.exponent_bits)) & 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (f.special == Format::ieee && exponent == top) {
    if (mantissa) return nan;
    return negative ? -INFINITY : INFINITY;
  }
  if (f.special == Format::nan_all_ones && exponent == top && mantissa == 7) return nan;
  if (f.special == Format::nan_minus_0 && negative && exponent == 0 && mantissa == 0) return nan;
  const double m = double(mantissa) + (exponent ? std::ldexp(1.0, f.mantissa_bits) : 0.0);
  const double v = std::ldexp(m, int(exponent ? exponent : 1) - f.bias - f.mantissa_bits);
  return negative ? -v : v;
}

// Distance between neighbouring numbers of the format at |x|.
inline double ulp(tk_dtype d, double x) {
  const Format f = format_of(d);
  int e = f.lowest_exponent();
  if (x != 0 && std::isfinite(x)) e = std::max(e, std::ilogb(x));
  return std::ldexp(1.0, e - f.mantissa_bits);
}

// Nearest number of the format, ties to even. Beyond the largest: inf where the format has one,
// else the largest (fp8 saturates).
inline double round_to(tk_dtype d, double x) {
  if (d == TK_F64 || x == 0 || !std::isfinite(x)) return x;
  const Format f = format_of(d);
  const double quantum = ulp(d, x);
  const double r =
      std::nearbyint(x / quantum) * quantum;  // both steps are exact: quantum is a power of two
  if (std::fabs(r) <= f.largest) return r;
  return std::copysign(f.special == Format::ieee && d != TK_E5M2 ? INFINITY : f.largest, x);
}

// How far from `value` a right element of format d may be that is computed up to `error` and then
// rounded: the rounding, and one unit in the last place beside the rounded number (two roundings, a
// merge of partial results). Where rounding reaches a power of two, that unit is the next binade's.
inline double rounded_bound(tk_dtype d, double value, double error) {
  const double most = std::fabs(value) + error;
  const double rounded = std::min(std::fabs(round_to(d, most)), format_of(d).largest);
  return error + ulp(d, most) / 2 + ulp(d, rounded);
}

// The code of round_to(d, x); a NaN becomes the format's quiet NaN.
inline uint64_t encode(tk_dtype d, double x) {
  const Format f = format_of(d);
  const uint64_t top = (uint64_t{1} << f.exponent_bits) - 1;
  const uint64_t sign = uint64_t(std::signbit(x)) << (f.mantissa_bits + f.exponent_bits);
  if (std::isnan(x)) {
    if (f.special == Format::none) throw std::logic_error("encode: a format without NaN");
    if (f.special == Format::nan_minus_0) return uint64_t{1} << (f.mantissa_bits + f.exponent_bits);
    if (f.special == Format::nan_all_ones) return (top << f.mantissa_bits) | 7;
    return (top << f.mantissa_bits) | (uint64_t{1} << (f.mantissa_bits - 1));
  }
  double r = std::fabs(round_to(d, x));
  if (std::isinf(r)) {
    if (f.special == Format::ieee) return sign | (top << f.mantissa_bits);
    r = f.largest;
  }
  if (r == 0) return f.special == Format::nan_minus_0 ? 0 : sign;
  const int e = std::max(std::ilogb(r), f.lowest_exponent());
  const uint64_t scaled =
      uint64_t(std::ldexp(r, f.mantissa_bits - e));  // exact; with the hidden bit where normal
  const uint64_t hidden = uint64_t{1} << f.mantissa_bits;
  if (scaled < hidden) return sign | scaled;  // subnormal
  return sign | (uint64_t(e + f.bias) << f.mantissa_bits) | (scaled - hidden);
}

}  // namespace reference
