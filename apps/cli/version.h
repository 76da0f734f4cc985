// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace cli {

// Of the built tree, "-dirty" where it was changed; "unknown" where nothing tells (version.cmake).
std::string_view git_sha();
std::string_view version();  // "0.1.0"

}  // namespace cli
