// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.compress. The contract fixes the arithmetic (an fp32 sum in order, one division,
// one rounding), so the oracle walks the same steps: a float64 sum of two fp32 numbers, rounded to
// fp32, is the fp32 sum.
#include "qsa/compress.h"

#include <array>

#include "reference/oracle.h"
#include "reference/reader.h"

namespace reference {
namespace {

bool power_of_two(int64_t c) { return (c & (c - 1)) == 0; }

// The pooled value of a sum, and how far a right kernel may be: 0 where C is a power of two; else a
// division on a GPU is approximate, and the contract asks for a quotient within 2 fp32 ulp before
// the rounding. The results that this can give, and one output ulp on either side as wherever an
// output is not exact.
struct Pooled {
  double value, bound;
};
Pooled pool(double sum, int64_t c, tk_dtype dtype) {
  const double quotient = round_to(TK_F32, sum / double(c));
  const double value = round_to(dtype, quotient);
  if (power_of_two(c) || !std::isfinite(value)) return {value, 0};
  const double slack = 2 * ulp(TK_F32, quotient);
  const double low = round_to(dtype, quotient - slack), high = round_to(dtype, quotient + slack);
  const double farthest = std::max(value - low, high - value);
  return {value, farthest + ulp(dtype, std::fabs(value) + farthest)};
}

Result compress(const toolkit::Args& a) {
  const Reader keys(a.tensor("raw_keys")), positions(a.tensor("raw_positions")),
      ring(a.tensor("compressor_state_cache")), table(a.tensor("compressor_state_block_table")),
      requests(a.tensor("token_to_req")), start(a.tensor("query_start_loc")),
      logical(a.tensor("logical_positions")), slots(a.tensor("compressed_slots"));
  const bool has_rope = a.has("rope_cache");
  const Reader rope(has_rope ? a.tensor("rope_cache") : a.tensor("raw_positions"));
  const int64_t c = a.integer("compress_ratio"), rows = keys.size(0), dim = keys.size(2);
  const int64_t n = start.size(0) - 1, blocks = ring.size(0), ring_rows = ring.size(1);
  const tk_dtype dtype = keys.view().dtype();

  Output pooled, first;
  pooled.dtype = dtype;
  pooled.shape = keys.view().shape();
  pooled.value.assign(size_t(rows * dim), 0.0);
  pooled.bound.assign(size_t(rows * dim), 0.0);
  first.dtype = TK_I64;
  first.shape = {rows, 3};
  first.integer.assign(size_t(rows * 3), 0);

  for (int64_t i = 0; i < rows; ++i) {
    const int64_t r = requests.integer(i), e = logical.integer(i);
    if (r < 0 || r >= n) continue;
    const int64_t begin = start.integer(r), end = start.integer(r + 1);
    if (i < begin || i >= end || e < c - 1 || slots.integer(i) < 0) continue;
    const int64_t chunk = e - (i - begin);  // position of the request's first row of this step
    const int64_t block = table.integer(r, 0);
    const bool ring_live = block >= 0 && block < blocks;
    std::vector<double> sum(size_t(dim), 0.0);
    for (int64_t o = 0; o < c; ++o) {
      const int64_t p = e - (c - 1 - o);
      const bool here = p >= chunk;
      if (here || ring_live)
        for (int64_t d = 0; d < dim; ++d) {
          const double x =
              here ? keys.real(begin + p - chunk, 0, d) : ring.real(block, p % ring_rows, 0, d);
          sum[size_t(d)] = round_to(TK_F32, sum[size_t(d)] + x);
        }
      if (o > 0) continue;
      for (int64_t axis = 0; axis < 3; ++axis) {
        int64_t& f = first.integer[size_t(i * 3 + axis)];
        if (!has_rope)
          f = e - c + 1;
        else if (here || ring_live)  // else stays 0
          f = here ? positions.integer(begin + p - chunk, 0, axis)
                   : rope.integer(block, p % ring_rows, 0, axis);
      }
    }
    for (int64_t d = 0; d < dim; ++d) {
      const Pooled v = pool(sum[size_t(d)], c, dtype);
      pooled.value[size_t(i * dim + d)] = v.value;
      pooled.bound[size_t(i * dim + d)] = v.bound;
    }
  }
  Result result;
  result.outputs.emplace("pooled", std::move(pooled));
  result.outputs.emplace("first_positions", std::move(first));
  return result;
}

const Registration registered("qsa.compress", compress);

}  // namespace
}  // namespace reference
