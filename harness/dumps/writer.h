// SPDX-License-Identifier: Apache-2.0
// Recording tensors: safetensors with strides kept, and .npy.
#pragma once

#include <string>

#include "harness/tensors/case.h"
#include "harness/tensors/tensor.h"

namespace harness {

// Dense tensors as they are. A strided one as its storage ("NAME.storage", written once for all views into it) plus a
// metadata entry "view.NAME" (dumps/views.cpp). The file appears whole or not at all. Throws BadFile where it cannot be
// written, std::invalid_argument for a dtype that the format has no word for (e4b15).
void write_safetensors(const std::string& path, const TensorMap& tensors, const ScalarMap& metadata);

// A case with everything it has: inputs, "expected.NAME", "actual.NAME" ("stage.actual.NAME" in a step), scalars, op.
void write_case(const std::string& path, const Case& c);

// bf16 and fp8 have no .npy dtype: std::invalid_argument.
void write_npy(const std::string& path, const Tensor& t);

}  // namespace harness
