// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.store: bits are copied. Of rows that contend for one slot the last wins here; a
// judge accepts any.
#include "qsa/store.h"

#include "reference/oracle.h"
#include "reference/reader.h"

namespace reference {
namespace {

Result store(const toolkit::Args& a) {
  const Reader cache(a.tensor("cache")), slots(a.tensor("slot_mapping")), rows(a.tensor("rows"));
  const int64_t pages = cache.size(0), page = cache.size(1), width = cache.size(3);
  const size_t bytes = size_t(cache.element_bytes());

  Output out;
  out.dtype = cache.view().dtype();
  out.shape = cache.view().shape();
  out.bytes.resize(size_t(cache.count()) * bytes);
  for (int64_t p = 0; p < pages; ++p)
    for (int64_t s = 0; s < page; ++s)
      for (int64_t w = 0; w < width; ++w)
        std::memcpy(&out.bytes[size_t((p * page + s) * width + w) * bytes], cache.at(p, s, 0, w),
                    bytes);
  for (int64_t i = 0; i < slots.count(); ++i) {
    const int64_t slot = slots.integer_linear(i);
    if (slot < 0 || slot >= pages * page) continue;
    for (int64_t w = 0; w < width; ++w)
      std::memcpy(&out.bytes[size_t(slot * width + w) * bytes], rows.at_linear(i * width + w),
                  bytes);
  }
  Result result;
  result.outputs.emplace("cache", std::move(out));
  return result;
}

const Registration registered("qsa.store", store);

}  // namespace
}  // namespace reference
