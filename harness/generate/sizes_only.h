// SPDX-License-Identifier: Apache-2.0
// For --dry-run: a case's shapes, ids and bytes without the numbers in its tensors, which take most of the time and all
// of the memory.
#pragma once

namespace harness {

void make_sizes_only(bool on);  // cases from here on: real tensors and caches stay zero, untouched
bool sizes_only();

}  // namespace harness
