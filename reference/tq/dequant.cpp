// SPDX-License-Identifier: Apache-2.0
// tq.dequant: the roundings of the contract one after the other - fp32, then f16 - so that all but norm-corrected keys
// are exact (bound 0; NaN where NaN is due).
#include "tq/dequant.h"

#include "reference/parallel.h"
#include "reference/tq/cache.h"
#include "reference/tq/error.h"

namespace reference::tq {
namespace {

// Two roundings, in this order. The argument is exact in float64 (at most 24 + 11 significant bits).
double half_of_float(double exact) { return round_to(TK_F16, round_to(TK_F32, exact)); }

// A norm-corrected key: f16 of a fp32 result that is off by the sum of squares, its root and a division, and then one
// unit in the last place.
void place_corrected(Output& k, int64_t at, double exact, double relative) {
  if (std::isfinite(exact)) place(k, at, exact, relative * std::fabs(exact));
  else k.value[at] = exact;
}

void write_token(const Cache& cache, const Slot& slot, int64_t at, double relative, Output& k, Output& v) {
  const double norm = cache.norm(slot), centroid_norm = cache.centroid_norm(slot);
  const double scale = cache.value_scale(slot), zero = cache.value_zero(slot);
  for (int64_t d = 0; d < cache.layout.head_dim; ++d) {
    v.value[at + d] = half_of_float(cache.value_code(slot, d) * scale + zero);
    const double key = cache.key(slot, d);
    if (cache.norm_correction) place_corrected(k, at + d, norm * key / centroid_norm, relative);
    else k.value[at + d] = half_of_float(norm * key);
  }
}

Result oracle(const toolkit::Args& a) {
  const Reader table(a.tensor("block_table"));
  const int64_t dim = ::tq::dequant::head_dim(a), tokens = ::tq::dequant::tokens(a);
  const Cache cache(a, dim);
  const toolkit::Shape shape{table.size(0), cache.heads(), tokens, dim};
  Output k = real_output(TK_F16, shape), v = real_output(TK_F16, shape);
  const double relative = accumulation(dim, int64_t(k.value.size())) / 2 + 3 * kApproximate * kUnit;
  for_each_row(shape[0] * shape[1], [&](int64_t part) {
    const int64_t b = part / shape[1], h = part % shape[1];
    for (int64_t n = 0; n < std::min(tokens, table.size(1) * cache.page()); ++n) {
      const int64_t block = table.integer(b, n / cache.page());
      if (block < 0 || block >= cache.blocks()) continue;  // zeros
      write_token(cache, cache.slot(block, n % cache.page(), h), (part * tokens + n) * dim, relative, k, v);
    }
  });
  Result result;
  result.outputs.emplace("k", std::move(k));
  result.outputs.emplace("v", std::move(v));
  return result;
}

const Registration registration("tq.dequant", oracle);

}  // namespace
}  // namespace reference::tq
