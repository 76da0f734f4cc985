// SPDX-License-Identifier: Apache-2.0
// Card of qsa.step. A step is judged stage by stage, each on the inputs that it really had.
#include "qsa/step.h"

#include <cmath>
#include <cstring>

#include "harness/judge/stages.h"
#include "harness/ops/qsa_kv.h"
#include "harness/ops/qsa_ring.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {
    {"ratio", "4", "C, tokens per group"},
    {"topk", "32", "token_topk, a multiple of ratio"},
    {"index_heads", "4", "index query heads"},
    {"index_dim", "32", "elements of an index head"},
    {"ring", "8", "rows of a request's ring, at least ratio"},
    {"keep_ring", "1", "1: the raw keys go into the ring after the step"},
    {"rope", "0", "1: 3-axis positions with a rope_cache"},
};
constexpr auto kAxes = with_kv(kOwn);

// Where the stage's own card finds a result of the step.
std::string place_in(const Case& c, const TensorMap& actual, std::string_view output,
                     int64_t linear) {
  for (const StageCase& s : stage_cases(c, actual)) {
    const bool ring = s.stage == "ring" && output == "compress.compressor_state_cache";
    if (!ring && !output.starts_with(s.stage + ".")) continue;
    const std::string_view name = ring ? "cache" : output.substr(s.stage.size() + 1);
    if (s.made.actual.contains(name)) return find_card(s.made.op)->place(s.made, name, linear);
  }
  return "element " + std::to_string(linear);
}

// A fault of a stage's card in that stage's results.
bool plant_in(const Case& c, TensorMap& out, const std::string& stage, std::string_view fault) {
  for (const StageCase& s : stage_cases(c, out)) {
    if (s.stage != stage) continue;
    TensorMap results = s.made.actual;
    for (const Fault& f : find_card(s.made.op)->faults())
      if (f.name == fault && f.plant(s.made, results)) {
        for (auto& [name, tensor] : results) out.insert_or_assign(stage + "." + name, tensor);
        return true;
      }
  }
  return false;
}

class StepCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::step::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode", "requests=3 ctx=90 heads=6 kv=1 dim=64"},
        {"speculative-rope",
         "batch=speculative requests=2 rows=4 ctx=120 heads=4 kv=2 dim=32 rope=1"},
        {"prefill", "batch=prefill requests=1 rows=50 heads=2 kv=1 dim=16"},
        {"mixed-padding", "batch=mixed requests=3 rows=9 ctx=100 heads=4 kv=1 dim=32 padding=2"},
        {"dense", "batch=speculative requests=2 rows=3 ctx=35 ragged=1 heads=4 kv=2 dim=32"},
        {"page-784", "requests=1 ctx=900 heads=3 kv=1 dim=16 page=784 topk=64 layout=halves"},
        {"page-1600", "requests=1 ctx=1700 heads=3 kv=1 dim=16 page=1600 topk=64 index_dim=16"},
        {"ratio-2-ring-left", "ratio=2 topk=16 requests=2 ctx=60 heads=2 kv=1 dim=16 keep_ring=0"},
        {"f16", "requests=2 ctx=70 heads=2 kv=1 dim=32 dtype=f16"},
        {"tuned", "requests=2 ctx=90 heads=12 kv=1 dim=128 topk=64"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.step");
    const Batch batch = batch_of(axes, random.stream("batch"));
    const int64_t ratio = axes.integer("ratio", 1), topk = axes.integer("topk", 1),
                  page = axes.integer("page", 1);
    const int64_t dim = axes.integer("index_dim", 1, 65535), heads = axes.integer("index_heads", 1);
    const tk_dtype dtype = axes.dtype("dtype", toolkit::kHalf);
    if (topk % ratio || page % ratio)
      throw std::invalid_argument(
          "qsa.step: axes topk and page: expected multiples of ratio = " + std::to_string(ratio) +
          ", got " + std::to_string(topk) + " and " + std::to_string(page));
    Case c;
    c.op = op();
    c.seed = seed;
    const PageTable main =
        make_kv_inputs(c, "attend.", axes, batch, TK_I32, random.stream("attend"));

    RingShape ring;
    ring.ratio = ratio;
    ring.dim = dim;
    ring.ring = axes.integer("ring", ratio);
    ring.rope = axes.flag("rope");
    ring.positions = ring.rope ? "mrope" : "text";
    ring.dtype = dtype;
    RingInputs in = make_ring_inputs(ring, batch, random.stream("compress"));

    PageTableShape shape;
    for (const int64_t length : batch.sequence_lengths) shape.tokens.push_back(length / ratio);
    if (shape.tokens.empty()) shape.tokens.push_back(0);
    shape.page_size = page / ratio;
    const PageTable groups = make_page_table(shape, random.stream("groups"));
    Tensor cache = make_cache({.dtype = dtype,
                               .pages = groups.pages,
                               .page_size = shape.page_size,
                               .heads = 1,
                               .dim = dim});
    fill_tokens(cache, groups, random.stream("groups"));
    std::vector<int64_t> slots, ring_slots;
    for (int64_t i = 0; i < batch.rows(); ++i) {
      const int64_t p = batch.query_positions[size_t(i)], r = batch.token_to_req[size_t(i)];
      const bool closes = p >= 0 && (p + 1) % ratio == 0;
      slots.push_back(closes ? groups.row(r, p / ratio) : -1);
      // Only the last rows of a request that fit the ring, so that no slot is wanted twice.
      const bool kept = p >= 0 && i >= batch.query_start_loc[size_t(r) + 1] - ring.ring;
      ring_slots.push_back(kept ? in.table.integer(r) * ring.ring + p % ring.ring : -1);
      if (!closes) continue;  // closed by this step: not in the cache yet
      for (int64_t d = 0; d < dim; ++d) cache.set_real(slots.back() * dim + d, NAN);
    }
    Tensor rows = make_tensor(dtype, {batch.rows(), 1, dim}),
           q = make_tensor(dtype, {batch.rows(), heads, dim});
    fill_normal(rows, random.stream("rows"));
    fill_normal(q, random.stream("index q"));

    std::vector<int64_t> start = batch.query_start_loc;
    if (start.size() < 2) start.push_back(0);
    c.inputs["token_to_req"] = from_integers(TK_I32, batch.token_to_req);
    c.inputs["query_positions"] = from_integers(TK_I64, batch.query_positions);
    c.inputs["logical_positions"] = from_integers(TK_I64, batch.query_positions);
    c.inputs["sequence_lengths"] =
        from_integers(TK_I32, batch.requests() ? batch.sequence_lengths : std::vector<int64_t>{0});
    c.inputs["query_start_loc"] = from_integers(TK_I32, start);
    c.inputs["page_table"] = groups.table;
    c.inputs["block_table"] = main.table;
    c.inputs["compressed_slots"] = from_integers(TK_I64, slots);
    c.inputs["compress.raw_keys"] = in.raw_keys;
    c.inputs["compress.raw_positions"] = in.raw_positions;
    c.inputs["compress.compressor_state_cache"] = in.state;
    c.inputs["compress.compressor_state_block_table"] = in.table;
    if (ring.rope) c.inputs["compress.rope_cache"] = in.rope;
    if (axes.flag("keep_ring")) c.inputs["ring_slots"] = from_integers(TK_I64, ring_slots);
    c.inputs["store.rows"] = rows;
    c.inputs["store.cache"] = cache;
    c.inputs["score.q"] = q;
    c.scalars = {{"compress_ratio", std::to_string(ratio)}, {"token_topk", std::to_string(topk)}};
    c.shape += " C=" + std::to_string(ratio) + " K=" + std::to_string(topk / ratio);
    return c;
  }

  bool wants_oracle() const override { return false; }
  Verdict judge(const Case& c, const reference::Result&, const TensorMap& actual) const override {
    Verdict v = judge_stages(c, actual);
    // Without ring_slots the ring has to stay as it was.
    const auto ring = actual.find("compress.compressor_state_cache");
    if (ring == actual.end() || c.inputs.contains("ring_slots")) return v;
    const Tensor before = c.inputs.at("compress.compressor_state_cache").packed(),
                 after = ring->second.packed();
    if (std::memcmp(before.data(), after.data(),
                    size_t(before.count() * toolkit::bytes_of(before.dtype))) == 0)
      return v;
    Verdict written;
    written.status = Status::fail;
    written.mismatches = 1;
    written.reason = written.first_bad =
        "ring: compressor_state_cache is written, although there are no ring_slots";
    fold(v, written);
    return v;
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    return place_in(c, c.actual, output, linear);
  }

  // Traffic of attend and score, which are nearly all of it, and the step's own keys.
  Cost cost(const Case& c) const override {
    const HostCall call(c);
    TensorMap results;
    for (const toolkit::OutputSpec& o : contract().outputs(toolkit::Args(contract(), call.call())))
      results.emplace(o.name, make_tensor(o.dtype, o.shape));
    results.emplace("store.cache", c.inputs.at("store.cache"));
    plant_result_of(c, results);
    Cost all;
    for (const StageCase& s : stage_cases(c, results)) {
      const Cost one = find_card(s.made.op)->cost(s.made);
      all.bytes += one.bytes;
      all.flops += one.flops;
    }
    return all;
  }

  std::vector<Fault> faults() const override {
    return {
        {"compress.wrong-divisor", "the sum is divided by C + 1",
         [](const Case& c, TensorMap& out) {
           return plant_in(c, out, "compress", "wrong-divisor");
         }},
        {"store.row-not-stored", "a closed group's key is not stored",
         [](const Case& c, TensorMap& out) { return plant_in(c, out, "store", "row-not-stored"); }},
        {"score.no-relu", "negative dot products count",
         [](const Case& c, TensorMap& out) { return plant_in(c, out, "score", "no-relu"); }},
        {"topk.winner-dropped", "the best group of a row is not chosen",
         [](const Case& c, TensorMap& out) { return plant_in(c, out, "topk", "winner-dropped"); }},
        {"expand.last-token-lost", "the last token of a row becomes -1",
         [](const Case& c, TensorMap& out) {
           return plant_in(c, out, "expand", "last-token-lost");
         }},
        {"attend.last-token-lost", "the last token of a row is not attended to",
         [](const Case& c, TensorMap& out) {
           return plant_in(c, out, "attend", "last-token-lost");
         }},
    };
  }
};

HARNESS_CARD(StepCard)

}  // namespace
}  // namespace harness
