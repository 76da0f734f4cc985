// SPDX-License-Identifier: Apache-2.0
// roof.empty: `nodes` launches of a kernel that does nothing. A probe: what a launch costs, and what each further one.
#pragma once

#include "toolkit/shape_rules.h"

namespace roof::empty {

using namespace toolkit;

inline constexpr ScalarSpec kScalars[] = {
    {"nodes", ScalarKind::integer, "1", "launches, > 0"},
};

inline void check(const Args& a) { require_integer(a, "nodes", 1); }
inline std::vector<OutputSpec> outputs(const Args&) { return {}; }

inline constexpr Contract contract{"roof.empty", "launches that do nothing", {}, kScalars, check, outputs};

}  // namespace roof::empty
