// SPDX-License-Identifier: Apache-2.0
// The name of a function for error messages.
#pragma once

#include <string>

namespace simt {

// The function's qualified name with template arguments, as the source has it; "a kernel" where it
// cannot be found.
std::string symbol_name(const void* function);

}  // namespace simt
