// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/options.h"

namespace cli {

// Of the cases that options.files (ops), --preset and --axis choose, on the GPUs of --profile.
// Throws BadRequest; Absent where the build has no kernels for NVIDIA GPUs.
int list_dispatch(const Tool& tool, const Options& options);

}  // namespace cli
