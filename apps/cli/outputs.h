// SPDX-License-Identifier: Apache-2.0
// Where a program writes its reports.
#pragma once

#include <string>
#include <vector>

namespace cli {

// Throws BadRequest where two reports go to one place or a report would overwrite what is read,
// whatever the paths are called: "x" and "./x", a link and its target are one file. Empty paths are
// reports that were not asked for. To be called before a file is opened for writing.
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

}  // namespace cli
