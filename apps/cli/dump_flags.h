// SPDX-License-Identifier: Apache-2.0
// --op, --set, --tensor, --map and --as: what a dump does not say itself.
#pragma once

#include <string>

#include "cli/options.h"
#include "harness/dumps/case_loader.h"

namespace cli {

harness::LoadOptions load_options(const Options& options);  // throws std::invalid_argument
// The same flags again, for a repro line: " --op qsa.merge --set output_dtype=f32".
std::string dump_flags(const Options& options);

}  // namespace cli
