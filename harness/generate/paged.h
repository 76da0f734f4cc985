// SPDX-License-Identifier: Apache-2.0
// Paged caches: page tables over shuffled physical pages, and caches in the memory layouts that servers use. Everything
// that no token occupies is poisoned (all ones), guards and gaps included.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "harness/generate/fill.h"
#include "harness/generate/random.h"
#include "harness/tensors/tensor.h"

namespace harness {

enum class PageOrder { shuffled, identity, reversed };
PageOrder page_order(std::string_view word);  // std::invalid_argument names the words

inline int64_t pages_for(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

struct PageTableShape {
  std::vector<int64_t> tokens;  // of each request: N = tokens.size()
  int64_t page_size = 64;
  int64_t width = 0;            // W; 0: as many as the longest request needs (at least 1)
  int64_t spare_pages = 2;      // physical pages that belong to nobody
  PageOrder order = PageOrder::shuffled;
  int64_t unused_entry = -1;    // what stands behind a request's last page
  tk_dtype dtype = TK_I32;
};

struct PageTable {
  Tensor table;             // [N,W]
  int64_t pages = 0;        // physical pages, spare ones included (at least 1)
  int64_t page_size = 0;
  std::vector<int64_t> tokens;
  // Physical row page*page_size + slot of a token of a request.
  int64_t row(int64_t request, int64_t token) const;
};
PageTable make_page_table(const PageTableShape& shape, const Random& random);

// separate: [P,S,H,D] dense. halves: K and V are the halves of one row, [P,S,H,2D]. interleaved: [P,S,2,H,D].
// head_major: [P,H,S,D]. padded: every page is followed by unused rows. Views are [P,S,H,D] in any case.
enum class CacheLayout { separate, halves, interleaved, head_major, padded };
CacheLayout cache_layout(std::string_view word);

// Padded pages by default; and at most, so that a cache's size stays a number. Far apart, few pages span more than 2^31
// elements, and what is generated, judged and compared element by element stays small.
inline constexpr int64_t kPadRows = 3, kMostPadRows = int64_t{1} << 32;

struct CacheShape {
  tk_dtype dtype = TK_BF16;
  int64_t pages = 1, page_size = 64, heads = 1, dim = 64;
  CacheLayout layout = CacheLayout::separate;
  int64_t pad_rows = kPadRows;  // padded: unused rows behind a page
  int64_t guard = 256;   // poisoned elements before the first and behind the last page
};

struct KvCache {
  Tensor k, v;  // [P,S,H,D]; halves and interleaved share one storage
};
KvCache make_kv_cache(const CacheShape& shape);
Tensor make_cache(const CacheShape& shape);  // one tensor; halves and interleaved leave the other half as a gap

// Normal numbers into the tokens that a table lists, [row of cache] for every request's tokens; the rest stays poison.
// Contents depend on request and token only, not on the physical page.
void fill_tokens(Tensor& cache, const PageTable& table, const Random& random, double scale = 1.0);

}  // namespace harness
