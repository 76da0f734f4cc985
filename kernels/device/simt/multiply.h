// SPDX-License-Identifier: Apache-2.0
// A matrix instruction over the fragments of a whole wave, computed in fp32.
#pragma once

#include "lane.h"

namespace simt {

// c[lane] += a[lane] b[lane], fragments laid out as device::Mma says.
void multiply_fragments(Half type, int wave, float* const* c, const uint16_t* const* a,
                        const uint16_t* const* b);

}  // namespace simt
