// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/qsa_kv.h"

#include <limits>

namespace harness {

PageTable make_kv_inputs(Case& c, const std::string& prefix, const Axes& axes, const Batch& batch,
                         tk_dtype index, const Random& random) {
  const int64_t heads = axes.integer("heads", 1), kv = axes.integer("kv", 1),
                dim = axes.integer("dim", 1);
  if (heads % kv)
    throw std::invalid_argument(c.op + ": axis heads: expected a multiple of kv = " +
                                std::to_string(kv) + ", got " + std::to_string(heads));
  PageTableShape shape;
  shape.tokens = batch.sequence_lengths;
  if (shape.tokens.empty())
    shape.tokens.push_back(0);  // no rows: the shapes are checked all the same
  shape.page_size = axes.integer("page", 1);
  shape.order = page_order(axes.word("order"));
  shape.unused_entry = axes.integer("unused", std::numeric_limits<int64_t>::min());
  shape.dtype = index;
  PageTable pages = make_page_table(shape, random.stream("pages"));
  CacheShape cache{.dtype = axes.dtype("dtype", toolkit::kHalf),
                   .pages = pages.pages,
                   .page_size = shape.page_size,
                   .heads = kv,
                   .dim = dim,
                   .layout = cache_layout(axes.word("layout"))};
  KvCache kv_cache = make_kv_cache(cache);
  if (axes.word("values", {"normal", "probe"}) == "normal") {
    fill_tokens(kv_cache.k, pages, random.stream("k"));
    fill_tokens(kv_cache.v, pages, random.stream("v"));
  } else {
    fill_tokens(kv_cache.k, pages, random.stream("k"), 0.0);
    for (size_t r = 0; r < pages.tokens.size(); ++r)
      for (int64_t t = 0; t < pages.tokens[r]; ++t)
        for (int64_t e = 0; e < kv * dim;
             ++e)  // one dim per token stands out, so that a lost one shows
          kv_cache.v.set_real(pages.row(int64_t(r), t) * kv * dim + e,
                              e % dim == t % dim ? 1.0 + double(t % 7) : 0.0);
  }
  Tensor q = make_tensor(cache.dtype, {batch.rows(), heads, dim});
  fill_normal(q, random.stream("q"), axes.number("scale", 0, 1e30));
  c.inputs[prefix + "q"] = q;
  c.inputs[prefix + "k_cache"] = kv_cache.k;
  c.inputs[prefix + "v_cache"] = kv_cache.v;
  c.shape = rows_text(batch) + " Hq=" + std::to_string(heads) + " Hkv=" + std::to_string(kv) +
            " D=" + std::to_string(dim) + " S=" + std::to_string(shape.page_size);
  return pages;
}

}  // namespace harness
