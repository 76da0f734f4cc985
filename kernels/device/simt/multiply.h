// SPDX-License-Identifier: Apache-2.0
// A matrix instruction over the fragments of a whole wave, in fp32: of 32 lanes as NVIDIA's tensor
// cores add (they cut), of 64 rounded.
#pragma once

#include "lane.h"

namespace simt {

// c[lane] += a[lane] b[lane], fragments laid out as device::Mma says.
void multiply_fragments(Half type, int wave, float* const* c, const uint16_t* const* a,
                        const uint16_t* const* b);

void multiply_byte_fragments(int32_t* const* c, const uint32_t* const* a, const uint32_t* const* b);

}  // namespace simt
