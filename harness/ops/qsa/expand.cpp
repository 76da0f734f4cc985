// SPDX-License-Identifier: Apache-2.0
// Card of qsa.expand.
#include "qsa/expand.h"

#include "harness/ops/qsa_rows.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {
    {"ratio", "4", "C, tokens per block"},
    {"topk", "64", "token_topk, a multiple of ratio"},
    {"index", "i32", "i32 or i64, type of blocks and positions"},
    {"overlap", "0.9", "Jaccard overlap of neighbouring rows' blocks"},
    {"ascending", "0", "1: blocks ascend, 0: any order"},
    {"hostile", "none", "none, requests, positions, blocks, all"},
};
constexpr auto kAxes = with_batch(kOwn);

class ExpandCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::expand::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode", "ctx=900"},
        {"wide", "topk=2048 ctx=9000 requests=3"},
        {"few-blocks-tail-moves-left", "ctx=40 requests=5 topk=64"},
        {"prefill-every-tail", "batch=prefill rows=41 requests=1"},
        {"speculative", "batch=speculative rows=4 ctx=1300 padding=2"},
        {"mixed", "batch=mixed rows=17 requests=3 ctx=1000"},
        {"ratio-1-no-tail", "ratio=1 topk=16 requests=5"},
        {"ratio-2", "ratio=2 topk=16"},
        {"ratio-3", "ratio=3 topk=48 batch=prefill rows=70 requests=1"},
        {"ratio-8", "ratio=8 topk=128 batch=prefill rows=140 requests=1"},
        {"i64", "index=i64"},
        {"requests-outside", "hostile=requests requests=6"},
        {"positions-beyond-length", "hostile=positions requests=6 ctx=40"},
        {"garbage-blocks", "hostile=blocks"},
        {"all-hostile", "hostile=all requests=9 ctx=70 padding=2"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.expand");
    Batch batch = batch_of(axes, random.stream("batch"));
    const int64_t ratio = axes.integer("ratio", 1), topk = axes.integer("topk", 1);
    if (topk % ratio)
      throw std::invalid_argument("qsa.expand: axis topk: expected a multiple of ratio = " +
                                  std::to_string(ratio) + ", got " + std::to_string(topk));
    const tk_dtype index = axes.dtype("index", toolkit::kIndex);
    const std::string hostile =
        axes.word("hostile", {"none", "requests", "positions", "blocks", "all"});
    SelectionShape chosen;
    for (int64_t i = 0; i < batch.rows(); ++i)
      chosen.candidates.push_back(batch.query_positions[size_t(i)] < 0
                                      ? 0
                                      : (batch.query_positions[size_t(i)] + 1) / ratio);
    chosen.group = batch.token_to_req;
    chosen.width = topk / ratio;
    chosen.jaccard = axes.number("overlap", 0, 1);
    chosen.ascending = axes.flag("ascending");
    chosen.dtype = index;
    Tensor blocks = make_selection(chosen, random.stream("blocks"));
    if (hostile == "blocks" || hostile == "all") {
      // 2^30 * 4 wraps to token 0 in 32 bits.
      const int64_t garbage[] = {-1, int64_t{1} << 30, -7, std::numeric_limits<int32_t>::max(),
                                 batch.requests() ? batch.sequence_lengths[0] : 0};
      for (int64_t i = 0; i < blocks.count(); i += 3) blocks.set_integer(i, garbage[(i / 3) % 5]);
    }
    for (int64_t i = 0; i < batch.rows(); ++i) {
      if ((hostile == "requests" || hostile == "all") && i % 3 == 1)
        batch.token_to_req[size_t(i)] = i % 2 ? batch.requests() + i : -1 - i;
      if ((hostile == "positions" || hostile == "all") && i % 3 == 2)
        batch.query_positions[size_t(i)] +=
            i % 2 ? 2 * ratio + 1 : -2 * batch.query_positions[size_t(i)] - 3;
    }
    if ((hostile == "positions" || hostile == "all") && batch.requests() > 2)
      batch.sequence_lengths[1] = -5;
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape =
        rows_text(batch) + " K=" + std::to_string(topk / ratio) + " C=" + std::to_string(ratio);
    c.scalars = {{"compress_ratio", std::to_string(ratio)}, {"token_topk", std::to_string(topk)}};
    c.inputs["block_indices"] = blocks;
    c.inputs["query_positions"] = from_integers(index, batch.query_positions);
    c.inputs["sequence_lengths"] =
        from_integers(TK_I32, batch.requests() ? batch.sequence_lengths : std::vector<int64_t>{0});
    c.inputs["token_to_req"] = from_integers(TK_I32, batch.token_to_req);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const std::vector<RowView> rows = row_views(c);
    note_requests(out, integers_of(c.inputs.at("token_to_req")),
                  integers_of(c.inputs.at("query_positions")),
                  c.inputs.at("sequence_lengths").shape[0]);
    note_positions(out, rows);
    const Tensor& blocks = c.inputs.at("block_indices");
    const int64_t k = blocks.shape[1], ratio = scalar_integer(c, "compress_ratio");
    int64_t lost_rows = 0, bad_rows = 0;
    std::string lost, bad;
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowView& r = rows[i];
      // Complete by length but behind the blocks that the length allows, and before the tail of the
      // position: with every block of the row chosen these tokens are in neither.
      if (r.position >= r.length && r.length > 0 && r.visible < k) {
        const int64_t first = r.visible * ratio,
                      tail = (r.position / ratio + (r.position % ratio == ratio - 1)) * ratio;
        const int64_t last = std::min(tail, r.length) - 1;
        if (first <= last && lost_rows++ == 0)
          lost = "row " + std::to_string(i) + ": tokens " + std::to_string(first) +
                 (first == last ? "" : " to " + std::to_string(last)) +
                 " are in neither a block nor the tail (position " + std::to_string(r.position) +
                 ", length " + std::to_string(r.length) + ")";
      }
      for (int64_t b = 0; b < std::min(r.visible, k); ++b) {
        const int64_t id = blocks.integer(int64_t(i) * k + b);
        if (id >= 0 && id < r.visible) continue;
        if (bad_rows++ == 0)
          bad = "row " + std::to_string(i) + ": block " + std::to_string(id) + " at column " +
                std::to_string(b) + " is outside the row's " + std::to_string(r.visible) +
                " visible blocks";
        break;
      }
    }
    if (lost_rows)
      out.push_back(lost +
                    (lost_rows > 1 ? "; " + std::to_string(lost_rows - 1) + " more rows" : ""));
    if (bad_rows)
      out.push_back(bad + (bad_rows > 1 ? "; " + std::to_string(bad_rows - 1) + " more rows" : ""));
    return out;
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const int64_t ratio = scalar_integer(c, "compress_ratio"),
                  k = c.inputs.at("block_indices").shape[1];
    const int64_t width = k * ratio + ratio - 1, row = linear / width, column = linear % width;
    const RowView r = row_views(c)[size_t(row)];
    const int64_t full = std::min(r.visible, k) * ratio;
    std::string where = ", behind the tail";
    if (column < full)
      where = ", block rank " + std::to_string(column / ratio) + " (block " +
              std::to_string(c.inputs.at("block_indices").integer(row * k + column / ratio)) + ")";
    else if (column < full + (r.position < 0 ? 0 : (r.position + 1) % ratio))
      where = ", tail token " + std::to_string(column - full);
    return "row " + std::to_string(row) + " (request " + std::to_string(r.request) + ", position " +
           std::to_string(r.position) + "), column " + std::to_string(column) + where;
  }

  Cost cost(const Case& c) const override {
    const Tensor& blocks = c.inputs.at("block_indices");
    const int64_t ratio = scalar_integer(c, "compress_ratio");
    double read = 0;
    for (const RowView& r : row_views(c))
      read += double(std::min(r.visible, blocks.shape[1])) * toolkit::bytes_of(blocks.dtype) + 12;
    return {read + 4.0 * double(blocks.shape[0]) * double(blocks.shape[1] * ratio + ratio - 1), 0};
  }

  std::vector<Fault> faults() const override {
    return {
        {"last-token-lost", "the last token of a row becomes -1",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("indices");
           for (int64_t i = t.count() - 1; i >= 0; --i)
             if (t.integer(i) >= 0) {
               t.set_integer(i, -1);
               return true;
             }
           return false;
         }},
        {"token-off-by-one", "every token is one too high",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("indices");
           bool any = false;
           for (int64_t i = 0; i < t.count(); ++i)
             if (t.integer(i) >= 0) {
               t.set_integer(i, t.integer(i) + 1);
               any = true;
             }
           return any;
         }},
        {"tail-at-fixed-column", "the tail begins at column token_topk",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("indices");
           const int64_t width = t.shape[1], ratio = scalar_integer(c, "compress_ratio"),
                         topk = width - ratio + 1;
           const std::vector<RowView> rows = row_views(c);
           bool moved = false;
           for (size_t i = 0; i < rows.size(); ++i) {
             const int64_t full = std::min(rows[i].visible, topk / ratio) * ratio;
             const int64_t tail = rows[i].position < 0 ? 0 : (rows[i].position + 1) % ratio;
             for (int64_t j = tail - 1; j >= 0 && full < topk; --j) {
               const int64_t from = int64_t(i) * width + full + j, token = t.integer(from);
               moved |= token >= 0;
               t.set_integer(from, -1);
               t.set_integer(int64_t(i) * width + topk + j, token);
             }
           }
           return moved;
         }},
    };
  }
};

HARNESS_CARD(ExpandCard)

}  // namespace
}  // namespace harness
