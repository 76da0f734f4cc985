// SPDX-License-Identifier: Apache-2.0
// What has to hold for any bytes whatever: a header is refused with BadFile, or everything that it
// promises lies in the file. Used by the mutation test (always) and by the fuzz targets.
#pragma once

#include <cstdlib>
#include <string>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/formats.h"
#include "toolkit/dtype.h"

namespace harness {

// Empty, or what is wrong. `parse` is parse_safetensors or parse_npy.
template <class Parse>
std::string broken_promise(Parse parse, std::span<const std::byte> file) {
  Header header;
  try {
    header = parse("file", file);
  } catch (const BadFile& e) {
    return e.got.empty() || e.expected.empty() ? "a refusal without expected and got" : "";
  }
  for (const DumpEntry& e : header.entries) {
    if (e.begin > e.end || e.end > file.size()) return "'" + e.name + "': bytes outside the file";
    if (e.shape.size() != e.strides.size() || e.shape.size() > kLargestRank)
      return "'" + e.name + "': rank";
    int64_t count = 0;
    if (!count_elements(e.shape, count)) return "'" + e.name + "': a count that is no number";
    if (e.dtype == 0 || count == 0) continue;
    __int128 lowest = e.offset, highest = e.offset;  // wider than the checks under test
    for (size_t d = 0; d < e.shape.size(); ++d) {
      const __int128 reach = __int128(e.shape[d] - 1) * e.strides[d];
      (reach < 0 ? lowest : highest) += reach;
    }
    const int bytes = toolkit::bytes_of(e.dtype);
    if (lowest < 0 || (highest + 1) * bytes > __int128(e.end - e.begin))
      return "'" + e.name + "': elements outside";
  }
  return "";
}

}  // namespace harness
