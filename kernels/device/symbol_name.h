// SPDX-License-Identifier: Apache-2.0
// The name of a kernel, for messages and for the listing of launches. Host code.
#pragma once

#include <string>

namespace device {

// The function's qualified name with template arguments, as the source has it; "a kernel" where it
// cannot be found.
std::string symbol_name(const void* function);

}  // namespace device
