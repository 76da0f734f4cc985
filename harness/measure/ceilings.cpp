// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/ceilings.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/report/read_rows.h"
#include "harness/report/roofline.h"

namespace harness {

namespace {

// Microseconds for an amount at a rate of 10^9 a second; none where the rate is not known.
double time_us(double amount, double rate) { return rate > 0 ? amount / rate * 1e-3 : 0; }

void raise(Ceilings& best, const Row& row) {
  if (!sets_roof(row)) return;
  const bool product = row.text("op") == "roof.mma";
  const auto amount = number_in(row, product ? "flops" : "bytes"),
             median = number_in(row, "time_us_median"), min = number_in(row, "time_us_min");
  if (!amount || *amount <= 0 || !median || *median <= 0 || !min || *min <= 0) return;
  Ceiling& ceiling = product ? (row.text("dtype") == "f16" ? best.f16 : best.bf16)
                     : row.text("l2") == name_of(Cache::warm) ? best.l2
                                                              : best.memory;
  ceiling.fastest = std::max(ceiling.fastest, *amount / *min * 1e-3);
  if (*amount / *median * 1e-3 <= ceiling.median) return;
  ceiling.median = *amount / *median * 1e-3;
  ceiling.source = row.text("case_id");
}

}  // namespace

Ceilings ceilings_of(const std::vector<Row>& roofs) {
  Ceilings best;
  for (const Row& row : roofs) raise(best, row);
  return best;
}

Standing stand(const Ceilings& ceilings, const Work& work, Cache cache, uint64_t l2_bytes,
               const Summary& time) {
  const double l2 = static_cast<double>(l2_bytes);
  // A warm case that fits comes from the L2; a larger one may still find a part of itself there.
  const bool warm = cache == Cache::warm && ceilings.l2.median > 0;
  const Ceiling& memory = warm && work.cost.bytes <= l2 ? ceilings.l2 : ceilings.memory;
  const Ceiling& product = work.dtype == TK_F16 ? ceilings.f16 : ceilings.bf16;
  Standing s;
  s.roof_gbps = memory.median;
  s.roof_gflops = product.median;
  s.source = "unknown";
  const double for_bytes = time_us(work.cost.bytes, memory.median),
               for_flops = time_us(work.cost.flops, product.median);
  const double roof = std::max(for_bytes, for_flops);
  if (roof <= 0 || time.median <= 0) return s;
  s.source = (for_flops > for_bytes ? product.source : memory.source) + ", measured in this run";
  s.pct = 100 * roof / time.median;
  // The least that has to pass: what is written may still lie in the L2 when the launch ends.
  const double moved =
      work.cost.bytes - (warm ? 0 : std::min(static_cast<double>(work.written_bytes), l2));
  const double least = std::max(
      time_us(moved, warm ? std::max(ceilings.l2.fastest, memory.fastest) : memory.fastest),
      time_us(work.cost.flops, product.fastest));
  s.impossible = least > time.median_hi;
  if (s.impossible)
    s.reason = fmt::format(
        "impossible: {:.2f} us, but the same work takes at least {:.2f} us at the fastest sample "
        "of {}; the "
        "count of bytes or FLOPs, the flush or the kernel is wrong",
        time.median, least, s.source);
  else if (s.pct > 100)
    s.reason = fmt::format("above its roof: {:.0f} % of {}{}", s.pct, s.source,
                           moved < work.cost.bytes ? "; what it writes may rest in the L2" : "");
  return s;
}

}  // namespace harness
