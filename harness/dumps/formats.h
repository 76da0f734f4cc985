// SPDX-License-Identifier: Apache-2.0
// The headers of the formats. Every number in them is hostile until it is checked against the file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "harness/dumps/dump.h"

namespace harness {

struct Header {
  std::vector<DumpEntry> entries;
  ScalarMap metadata;
};

inline constexpr size_t kLargestHeader = 100'000'000;  // bytes; the limit of the safetensors format
inline constexpr size_t kLargestRank = 32;

// `file` is the whole file. Throws BadFile.
Header parse_safetensors(const std::string& path, std::span<const std::byte> file);
// The length is within the file and a JSON object begins behind it.
bool starts_with_header(std::span<const std::byte> file);
Header parse_npy(const std::string& path, std::span<const std::byte> file);

// Resolves "view.NAME" entries of the metadata into entries of their own.
void add_views(const std::string& path, Header& header);

// Elements of a shape; false where sizes are negative or their product leaves int64.
bool count_elements(const Shape& shape, int64_t& count);

}  // namespace harness
