// SPDX-License-Identifier: Apache-2.0
// What the measured roofs say about a timed case: its share of the roof, and whether its time is
// possible at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/measure/kernel_timer.h"
#include "harness/measure/statistics.h"
#include "harness/ops/card.h"
#include "harness/report/row.h"

namespace harness {

struct Ceiling {
  double median = 0;   // of the roof's rate: GB/s or GFLOP/s; 0 where it was not measured
  double fastest = 0;  // of its fastest sample
  std::string source;  // "roof.gather/512"
};

// The best of a kind: memory is whatever of reading, copying and gathering went fastest.
struct Ceilings {
  Ceiling memory, l2, bf16, f16;
};

// From the rows of a device's roofs, as a run writes them (those that gave what they had to).
Ceilings ceilings_of(const std::vector<Row>& roofs);

struct Work {
  Cost cost;
  uint64_t written_bytes = 0;  // outputs: up to the size of the L2 they may rest there
  tk_dtype dtype = 0;
};

struct Standing {
  double roof_gbps = 0, roof_gflops = 0;  // 0: unknown
  std::string source;                     // "unknown" where nothing was measured
  double pct = 0;                         // of the roof that binds; 0: unknown
  bool impossible = false;                // surely faster than the roof's fastest sample
  std::string reason;                     // where pct is above 100
};

Standing stand(const Ceilings& ceilings, const Work& work, Cache cache, uint64_t l2_bytes,
               const Summary& time);

}  // namespace harness
