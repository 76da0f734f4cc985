// SPDX-License-Identifier: Apache-2.0
// What outputs hold before a kernel runs: per dtype a pattern that no right kernel writes (a NaN with a marked payload)
// or hardly ever (integers: judged unwritten only where the value is wrong too). Other than the poison of unused inputs
// (all ones), so that a NaN that was read and passed on is not taken for an element that was never written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "harness/tensors/tensor.h"

namespace harness {

// The bytes of one poisoned element, little endian, bytes_of(dtype) long; empty for an unknown dtype.
std::span<const uint8_t> output_poison(tk_dtype dtype);

// Every element of the view; a dense tensor at once.
void poison(Tensor& t);

bool is_output_poison(tk_dtype dtype, const std::byte* element);

}  // namespace harness
