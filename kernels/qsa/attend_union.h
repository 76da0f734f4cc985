// SPDX-License-Identifier: Apache-2.0
// The part of the tuned attend that serves rows which share tokens: attend_union_sm_80.cu, and attend_union_sm_90.cu
// where it can. What they leave is for the kernel of single rows, with AttendParams::served set to what these give.
#pragma once

#include "qsa/launches.h"

namespace qsa {

// From shapes alone: enough neighbouring rows of a request. q, k_cache and v_cache are dense runs of 16 bytes.
bool shares_tokens(const AttendParams& p);
// [R,Hkv]: not 0 where the output has been written. The rows themselves decide, on the device.
const uint8_t* plan_union(const AttendParams& p, device::Carver& carver);
const uint8_t* launch_union(const AttendParams& p, device::Carver& carver, void* stream);

// The same of attend_union_sm_90.cu; only the functions above call these.
bool shares_tiles(const AttendParams& p);
const uint8_t* plan_tiles(const AttendParams& p, device::Carver& carver);
const uint8_t* launch_tiles(const AttendParams& p, device::Carver& carver, void* stream);

}  // namespace qsa
