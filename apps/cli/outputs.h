// SPDX-License-Identifier: Apache-2.0
// The files that a command writes.
#pragma once

#include <string>
#include <vector>

namespace cli {

// Refuses (BadRequest) two outputs into one file, and an output over a file that is read. "-" is
// standard output; an empty path is none.
void check_outputs(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);

// The same file, by whatever path or link.
bool same_file(const std::string& a, const std::string& b);

}  // namespace cli
