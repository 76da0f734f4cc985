// SPDX-License-Identifier: Apache-2.0
// roof.gather: reads whole segments in the order of a list. A probe: the roof of paged reads, by segment size.
//
// sums[b] = sum modulo 2^32 of the words that block b read; the sum of all blocks is that of all listed segments.
#pragma once

#include "toolkit/shape_rules.h"

namespace roof::gather {

using namespace toolkit;

inline constexpr TensorSpec kTensors[] = {
    {"source", Role::input, dtypes(TK_U32), "S,W", "contiguous segments of W = 64, 128, 256, 512 or 1024 words"},
    {"ids", Role::input, dtypes(TK_I32), "N", "segments in [0,S), contiguous; not checked"},
    {"sums", Role::output, dtypes(TK_U32), "blocks", "sum of a block's words, modulo 2^32"},
};
inline constexpr ScalarSpec kScalars[] = {
    {"blocks", ScalarKind::integer, nullptr, "blocks of the launch, > 0"},
};

inline void check(const Args& a) {
  require_integer(a, "blocks", 1);
  const TensorView source = a.tensor("source");
  const int64_t words = source.size(1);
  require(words == 64 || words == 128 || words == 256 || words == 512 || words == 1024, a, "source",
          "segments of 64, 128, 256, 512 or 1024 words", got_shape(source));
}
inline std::vector<OutputSpec> outputs(const Args& a) { return {{"sums", TK_U32, {a.integer("blocks")}}}; }

inline constexpr Contract contract{"roof.gather", "reads listed segments", kTensors, kScalars, check, outputs};

}  // namespace roof::gather
