// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace cli {

std::string_view
git_sha();  // of the built tree, "-dirty" where it was changed; "unknown" without git
std::string_view version();  // "0.1.0"

}  // namespace cli
