// SPDX-License-Identifier: Apache-2.0
#include "harness/generate/paged.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "harness/generate/fill.h"
#include "reference/parallel.h"

namespace harness {

namespace {

void require(bool ok, const std::string& what, const std::string& expected, int64_t got) {
  if (!ok)
    throw std::invalid_argument(what + ": expected " + expected + ", got " + std::to_string(got));
}

// The strides of a view [P,S,H,D], in elements, and what a page takes.
struct Strides {
  int64_t page, slot, head, second;  // second: where V begins, from K
};

Strides strides_of(const CacheShape& c) {
  const int64_t row = c.heads * c.dim;
  switch (c.layout) {
    case CacheLayout::separate:
      return {c.page_size * row, row, c.dim, 0};
    case CacheLayout::halves:
      return {c.page_size * row * 2, row * 2, c.dim * 2, c.dim};
    case CacheLayout::interleaved:
      return {c.page_size * row * 2, row * 2, c.dim, row};
    case CacheLayout::head_major:
      return {c.page_size * row, c.dim, c.page_size * c.dim, 0};
    case CacheLayout::padded:
      return {(c.page_size + c.pad_rows) * row, row, c.dim, 0};
  }
  throw std::logic_error("cache layout");
}

Tensor allocate(const CacheShape& c, const Strides& s) {
  require(c.pages >= 1, "cache: pages", "1 or more", c.pages);
  require(c.page_size >= 1, "cache: page size", "1 or more", c.page_size);
  require(c.heads >= 1, "cache: heads", "1 or more", c.heads);
  require(c.dim >= 1, "cache: dim", "1 or more", c.dim);
  require(c.guard >= 0, "cache: guard", "0 or more", c.guard);
  require(c.pad_rows >= 0, "cache: pad rows", "0 or more", c.pad_rows);
  Tensor all = make_tensor(c.dtype, {c.guard + c.pages * s.page + c.guard});
  poison_storage(all);
  return view(all, c.guard, {c.pages, c.page_size, c.heads, c.dim}, {s.page, s.slot, s.head, 1});
}

}  // namespace

PageOrder page_order(std::string_view word) {
  if (word == "shuffled") return PageOrder::shuffled;
  if (word == "identity") return PageOrder::identity;
  if (word == "reversed") return PageOrder::reversed;
  throw std::invalid_argument("page order: expected shuffled, identity or reversed, got '" +
                              std::string(word) + "'");
}

CacheLayout cache_layout(std::string_view word) {
  if (word == "separate") return CacheLayout::separate;
  if (word == "halves") return CacheLayout::halves;
  if (word == "interleaved") return CacheLayout::interleaved;
  if (word == "head_major") return CacheLayout::head_major;
  if (word == "padded") return CacheLayout::padded;
  throw std::invalid_argument(
      "cache layout: expected separate, halves, interleaved, head_major or padded, got '" +
      std::string(word) + "'");
}

int64_t PageTable::row(int64_t request, int64_t token) const {
  const int64_t page = table.integer(request * table.shape[1] + token / page_size);
  return page * page_size + token % page_size;
}

PageTable make_page_table(const PageTableShape& s, const Random& random) {
  require(s.page_size >= 1, "page table: page size", "1 or more", s.page_size);
  require(s.spare_pages >= 0, "page table: spare pages", "0 or more", s.spare_pages);
  int64_t needed = 0, widest = 1;
  for (const int64_t tokens : s.tokens) {
    require(tokens >= 0, "page table: tokens of a request", "0 or more", tokens);
    needed += pages_for(tokens, s.page_size);
    widest = std::max(widest, pages_for(tokens, s.page_size));
  }
  const int64_t width = s.width == 0 ? widest : s.width;
  require(width >= widest, "page table: width",
          std::to_string(widest) + " or more (0: just enough)", width);
  PageTable out;
  out.pages = std::max<int64_t>(needed + s.spare_pages, 1);
  out.page_size = s.page_size;
  out.tokens = s.tokens;
  std::vector<int64_t> order = random.shuffle(out.pages);
  if (s.order != PageOrder::shuffled) std::sort(order.begin(), order.end());
  if (s.order == PageOrder::reversed) std::reverse(order.begin(), order.end());
  std::vector<int64_t> entries;
  size_t next = 0;
  for (const int64_t tokens : s.tokens)
    for (int64_t w = 0; w < width; ++w)
      entries.push_back(w < pages_for(tokens, s.page_size) ? order[next++] : s.unused_entry);
  out.table = from_integers(s.dtype, entries, {int64_t(s.tokens.size()), width});
  return out;
}

KvCache make_kv_cache(const CacheShape& shape) {
  const Strides s = strides_of(shape);
  KvCache c;
  c.k = allocate(shape, s);
  c.v = s.second ? view(c.k, s.second, c.k.shape, c.k.strides) : allocate(shape, s);
  return c;
}

Tensor make_cache(const CacheShape& shape) { return allocate(shape, strides_of(shape)); }

void fill_tokens(Tensor& cache, const PageTable& table, const Random& random, double scale) {
  const int64_t heads = cache.shape.at(2), dim = cache.shape.at(3);
  const int bytes = toolkit::bytes_of(cache.dtype);
  int64_t tokens = 0;
  for (const int64_t n : table.tokens) tokens += n;
  const NormalElement element(cache.dtype, scale, 0.0, tokens * heads * dim);
  // A number depends on its place alone and no two requests share a page: any order will do.
  constexpr int64_t kTokens = 1024;
  struct Part {
    size_t request;
    int64_t first;
  };
  std::vector<Part> parts;
  for (size_t r = 0; r < table.tokens.size(); ++r)
    for (int64_t first = 0; first < table.tokens[r]; first += kTokens) parts.push_back({r, first});
  reference::for_each_row(int64_t(parts.size()), [&](int64_t part) {
    const auto [r, first] = parts[size_t(part)];
    const Random numbers = random.stream("request", r);
    std::vector<int32_t> sums(static_cast<size_t>(dim));
    for (int64_t token = first; token < std::min(first + kTokens, table.tokens[r]); ++token) {
      const int64_t row = table.row(int64_t(r), token);
      for (int64_t h = 0; h < heads; ++h) {
        std::byte* p =
            cache.data() + cache.at({row / table.page_size, row % table.page_size, h, 0});
        numbers.normal_sums(uint64_t((token * heads + h) * dim), dim, sums.data());
        for (int64_t d = 0; d < dim; ++d, p += cache.strides[3] * bytes)
          element.put(sums[size_t(d)], p);
      }
    }
  });
}

}  // namespace harness
