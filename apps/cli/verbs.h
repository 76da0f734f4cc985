// SPDX-License-Identifier: Apache-2.0
// One function a verb. Each returns the exit code; BadRequest, Absent and DeviceError end in
// tool_main.
#pragma once

#include "cli/options.h"

namespace cli {

int verify(const Tool& tool, const VerbName& verb, const Options& options);
int replay(const Tool& tool, const VerbName& verb, const Options& options);
int list(const Tool& tool, const VerbName& verb, const Options& options);
int bench(const Tool& tool, const VerbName& verb, const Options& options);
int roofs(const Tool& tool, const VerbName& verb, const Options& options);
int compare(const Tool& tool, const VerbName& verb, const Options& options);
int env(const Tool& tool, const VerbName& verb, const Options& options);
int report(const Tool& tool, const VerbName& verb, const Options& options);

}  // namespace cli
