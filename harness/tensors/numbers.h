// SPDX-License-Identifier: Apache-2.0
// Element bits to float64 and back, for the harness (kernels and oracles have their own conversions on purpose).
#pragma once

#include <cstddef>
#include <cstdint>

#include "toolkit/dtype.h"

namespace harness {

bool is_float(tk_dtype d);  // f16, bf16, f32, f64 and the fp8 formats

// The number in these bits: floats exactly, integers and bool converted.
double decode_real(tk_dtype d, const std::byte* bits);
int64_t decode_integer(tk_dtype d, const std::byte* bits);  // integers and bool; floats: std::invalid_argument

// Rounded to nearest even. f16 and bf16 overflow to infinity, fp8 saturates at its largest number; NaN stays NaN where the
// format has one. Integers: rounded, saturating.
void encode_real(tk_dtype d, double value, std::byte* bits);
void encode_integer(tk_dtype d, int64_t value, std::byte* bits);  // wraps into the width; floats: as encode_real

}  // namespace harness
