// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/sizes_only.h"

namespace harness {

namespace {

bool only = false;

}  // namespace

void make_sizes_only(bool on) { only = on; }
bool sizes_only() { return only; }

}  // namespace harness
