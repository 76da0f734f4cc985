// SPDX-License-Identifier: Apache-2.0
// --isolate: each case in a child process of its own.
#pragma once

#include <string>

#include "cli/session.h"

namespace cli {

// Runs case `index` of this very command in a child, which gets `roofs` (lines_of_roofs), and takes
// its rows over. A child that crashes or hangs costs the row that it was at; another child goes on
// with the rest of the case. `fallback`: the row for a child that dies before it begins any.
void run_isolated(Session& session, const VerbName& verb, int index, const harness::Row& fallback,
                  const std::string& roofs = {});

}  // namespace cli
