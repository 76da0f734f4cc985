// SPDX-License-Identifier: Apache-2.0
// qsa.store: rows into the slots of a paged cache, bit for bit.
//
//   cache[slot div S][slot mod S][0] = rows[i] for slot = slot_mapping[i], where 0 <= slot < P*S; others are skipped.
// Any element type is copied as bits. slot_mapping may have any rank (n = its element count). Duplicate live slots:
// the order is undefined, any contending row is right, and the input's fault is reported as a finding.
#pragma once

#include "toolkit/shape_rules.h"

namespace qsa::store {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"cache", Role::in_place, kAnyDtype, "P,S,1,W", "the paged cache, changed in place"},
    {"slot_mapping", Role::input, kIndex, "", "slot of each row, any rank; outside [0,P*S): skipped"},
    {"rows", Role::input, kAnyDtype, "", "[n,W] or [n,1,W], the cache's dtype"},
};

inline int64_t row_count(const Args& a) { return a.tensor("slot_mapping").count(); }

inline void check(const Args& a) {
  const TensorView cache = a.tensor("cache"), rows = a.tensor("rows");
  require_positive(a, "cache", 0, 1, 3);
  const int64_t n = row_count(a), w = cache.size(3);
  const bool flat = rows.rank() == 2 && rows.shape() == Shape{n, w};
  const bool headed = rows.rank() == 3 && rows.shape() == Shape{n, 1, w};
  require(flat || headed, a, "rows", "shape " + to_text({n, w}) + " or " + to_text({n, 1, w}) +
          " (slot_mapping has " + std::to_string(n) + " slots)", got_shape(rows));
  require_same_dtype(a, "rows", "cache");
}

inline std::vector<OutputSpec> outputs(const Args&) { return {}; }

inline constexpr Contract contract{"qsa.store", "rows into the slots of a paged cache", kTensors, {}, check, outputs};

}  // namespace qsa::store
