// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.expand.
#include "qsa/expand.h"

#include "reference/oracle.h"
#include "reference/qsa/expand.h"
#include "reference/qsa/groups.h"
#include "reference/reader.h"

namespace reference {

std::vector<int64_t> expand_row(const std::vector<int64_t>& blocks, int64_t position,
                                int64_t length, int64_t c) {
  const int64_t k = int64_t(blocks.size());
  const int64_t full = std::min(visible_groups(position, length, c), k);
  std::vector<int64_t> tokens;
  // A token outside [0, length) becomes -1. The block is compared before the product, which could
  // leave 64 bits.
  const auto put = [&](int64_t block, int64_t j) {
    const bool inside = block >= 0 && block <= length / c && block * c + j < length;
    tokens.push_back(inside ? block * c + j : -1);
  };
  for (int64_t b = 0; b < full; ++b)
    for (int64_t j = 0; j < c; ++j) put(blocks[size_t(b)], j);
  for (int64_t j = 0; j < open_tokens(position, c); ++j) put(complete_groups(position, c), j);
  tokens.resize(size_t(k * c + c - 1), -1);
  return tokens;
}

namespace {

Result expand(const toolkit::Args& a) {
  const Reader blocks(a.tensor("block_indices")), positions(a.tensor("query_positions")),
      lengths(a.tensor("sequence_lengths")), requests(a.tensor("token_to_req"));
  const int64_t rows = blocks.size(0), k = blocks.size(1), c = a.integer("compress_ratio");
  Output out;
  out.dtype = TK_I32;
  out.shape = {rows, ::qsa::expand::width(a)};
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t r = requests.integer(i);
    const int64_t length = r >= 0 && r < lengths.size(0) ? lengths.integer(r) : 0;
    std::vector<int64_t> chosen(static_cast<size_t>(k));
    for (int64_t b = 0; b < k; ++b) chosen[size_t(b)] = blocks.integer(i, b);
    const std::vector<int64_t> tokens = expand_row(chosen, positions.integer(i), length, c);
    out.integer.insert(out.integer.end(), tokens.begin(), tokens.end());
  }
  Result result;
  result.outputs.emplace("indices", std::move(out));
  return result;
}

const Registration registered("qsa.expand", expand);

}  // namespace
}  // namespace reference
