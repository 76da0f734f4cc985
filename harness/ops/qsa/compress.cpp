// SPDX-License-Identifier: Apache-2.0
// Card of qsa.compress.
#include "qsa/compress.h"

#include <cmath>

#include "harness/ops/qsa_ring.h"

namespace harness {
namespace {

constexpr Axis kOwn[] = {
    {"ratio", "4", "C, tokens per group"},
    {"dim", "128", "elements of a key"},
    {"ring", "8", "rows of a request's ring, at least ratio"},
    {"dtype", "bf16", "bf16, f16 or f32"},
    {"index", "i64", "i32 or i64, of logical_positions and compressed_slots"},
    {"positions", "text", "raw_positions: text (stride 0), mrope, transposed"},
    {"rope", "0", "1: with a rope_cache"},
    {"stride", "0", "elements from row to row of raw_keys, 0: dense"},
    {"slots", "closing", "closing: rows that close a group; all; none"},
    {"table_columns", "1", "columns of the ring table, only the first counts"},
    {"hostile", "none", "none, requests, ring, ranges, all"},
};
constexpr auto kAxes = with_batch(kOwn);

// Member 0 of a live row's group: where it sits. Not live: kind none.
struct Group {
  enum { none, step, ring, ring_invalid } kind = none;
  int64_t request = 0, position = 0;
};
Group group_of(const Case& c, int64_t i) {
  const auto at = [&](std::string_view name, int64_t k) {
    return c.inputs.find(name)->second.integer(k);
  };
  const int64_t n = c.inputs.at("query_start_loc").shape[0] - 1, r = at("token_to_req", i),
                e = at("logical_positions", i);
  const int64_t ratio = scalar_integer(c, "compress_ratio");
  if (r < 0 || r >= n || i < at("query_start_loc", r) || i >= at("query_start_loc", r + 1) ||
      e < ratio - 1 || at("compressed_slots", i) < 0)
    return {};
  Group g{Group::step, r, e - ratio + 1};
  if (i - at("query_start_loc", r) >= ratio - 1) return g;  // all members are of this step
  const Tensor& table = c.inputs.at("compressor_state_block_table");
  const int64_t block = table.integer(r * table.shape[1]);
  g.kind = block >= 0 && block < c.inputs.at("compressor_state_cache").shape[0]
               ? Group::ring
               : Group::ring_invalid;
  return g;
}

class CompressCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return qsa::compress::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"decode-ring", "requests=6 ctx=100"},
        {"speculative-rope", "batch=speculative requests=3 ctx=60 ring=12 positions=mrope rope=1"},
        {"prefill", "batch=prefill requests=1 rows=45"},
        {"chunk-spans-ring",
         "batch=chunked requests=2 rows=7 ctx=57 ragged=1 positions=mrope rope=1"},
        {"one-token-probe", "batch=prefill requests=3 rows=1"},
        {"three-token-probe", "batch=prefill requests=2 rows=3"},
        {"mixed-strided",
         "batch=mixed requests=3 rows=9 ctx=40 stride=640 positions=transposed rope=1 padding=2"},
        {"ratio-1", "ratio=1 requests=5 dim=64"},
        {"ratio-2", "ratio=2 batch=speculative dim=64"},
        {"ratio-3-ring-5", "ratio=3 ring=5 dim=80 batch=speculative ctx=90"},
        {"ratio-8", "ratio=8 dim=64 batch=chunked rows=13 requests=2 ctx=70"},
        {"ring-is-ratio", "ring=4 batch=speculative rows=3 ctx=50"},
        {"f16", "dtype=f16 dim=64 batch=speculative"},
        {"f32-i32", "dtype=f32 dim=40 index=i32 batch=speculative"},
        {"every-row-live", "slots=all batch=speculative ctx=33 dim=48"},
        {"many-requests", "requests=150 dim=16 ctx=60 slots=all"},
        {"many-requests-f16", "requests=1023 dtype=f16 dim=8 ctx=9 slots=all"},
        {"wide-table", "table_columns=3 requests=3 slots=all dim=32"},
        {"ring-invalid", "hostile=ring slots=all batch=speculative positions=mrope rope=1 dim=32"},
        {"hostile", "hostile=all slots=all batch=mixed requests=5 rows=6 ctx=40 padding=2 dim=32"},
        {"no-rows", "requests=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, "qsa.compress");
    Batch batch = batch_of(axes, random.stream("batch"));
    RingShape s;
    s.ratio = axes.integer("ratio", 1);
    s.dim = axes.integer("dim", 1, 65535);
    s.ring = axes.integer("ring", s.ratio);
    s.stride = axes.integer("stride");
    s.positions = axes.word("positions", {"text", "mrope", "transposed"});
    s.rope = axes.flag("rope");
    s.dtype = axes.dtype("dtype", toolkit::kFloat);
    s.index = axes.dtype("index", toolkit::kIndex);
    const std::string hostile = axes.word("hostile", {"none", "requests", "ring", "ranges", "all"});
    const std::string slots = axes.word("slots", {"closing", "all", "none"});
    RingInputs in = make_ring_inputs(s, batch, random);

    std::vector<int64_t> slot;
    for (int64_t i = 0; i < batch.rows(); ++i) {
      const int64_t e = batch.query_positions[size_t(i)];
      const bool live =
          e >= 0 && (slots == "all" || (slots == "closing" && (e + 1) % s.ratio == 0));
      slot.push_back(live ? 1000 + i : -1);
    }
    const bool all = hostile == "all";
    for (int64_t i = 1; i < batch.rows(); i += 4) {
      if (all || hostile == "requests")
        batch.token_to_req[size_t(i)] = i % 8 == 1 ? -1 : batch.requests() + 3;
      if (i + 1 < batch.rows() && (all || hostile == "ranges") && batch.requests() > 1)
        batch.token_to_req[size_t(i + 1)] =
            batch.requests() - 1 - batch.token_to_req[size_t(i + 1)];
    }
    if (all || hostile == "ring")
      for (int64_t r = 0; r < in.table.count(); r += 2)
        in.table.set_integer(r, r % 4 ? -1 : in.state.shape[0]);
    if (const int64_t columns = axes.integer("table_columns", 1); columns > 1) {
      Tensor wide = make_tensor(TK_I32, {in.table.shape[0], columns});
      fill_integer(wide, 77777);
      for (int64_t r = 0; r < in.table.shape[0]; ++r)
        wide.set_integer(r * columns, in.table.integer(r));
      in.table = wide;
    }
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = rows_text(batch) + " C=" + std::to_string(s.ratio) + " D=" + std::to_string(s.dim) +
              " ring=" + std::to_string(s.ring);
    c.inputs["raw_keys"] = in.raw_keys;
    c.inputs["raw_positions"] = in.raw_positions;
    c.inputs["compressor_state_cache"] = in.state;
    c.inputs["compressor_state_block_table"] = in.table;
    if (s.rope) c.inputs["rope_cache"] = in.rope;
    c.inputs["token_to_req"] = from_integers(TK_I32, batch.token_to_req);
    std::vector<int64_t> start = batch.query_start_loc;
    if (start.size() < 2) start.push_back(0);
    c.inputs["query_start_loc"] = from_integers(TK_I32, start);
    c.inputs["logical_positions"] = from_integers(s.index, batch.query_positions);
    c.inputs["compressed_slots"] = from_integers(s.index, slot);
    c.scalars["compress_ratio"] = std::to_string(s.ratio);
    return c;
  }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const std::vector<int64_t> requests = integers_of(c.inputs.at("token_to_req"));
    const std::vector<int64_t> start = integers_of(c.inputs.at("query_start_loc"));
    const int64_t n = int64_t(start.size()) - 1;
    note_requests(out, requests, integers_of(c.inputs.at("logical_positions")), n);
    int64_t outside = 0, first = 0, invalid = 0, first_invalid = 0;
    for (int64_t i = 0; i < int64_t(requests.size()); ++i) {
      const int64_t r = requests[size_t(i)];
      if (r >= 0 && r < n && (i < start[size_t(r)] || i >= start[size_t(r) + 1]) &&
          c.inputs.at("logical_positions").integer(i) >= 0 && outside++ == 0)
        first = i;
      if (group_of(c, i).kind == Group::ring_invalid && invalid++ == 0) first_invalid = i;
    }
    if (outside)
      out.push_back(std::to_string(outside) +
                    " rows are outside their request's rows of query_start_loc (first: row " +
                    std::to_string(first) + ", request " + std::to_string(requests[size_t(first)]) +
                    "); not live");
    if (invalid)
      out.push_back(std::to_string(invalid) + " groups reach into a ring block outside [0," +
                    std::to_string(c.inputs.at("compressor_state_cache").shape[0]) +
                    ") (first: row " + std::to_string(first_invalid) +
                    "); its members count as zeros");
    return out;
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    const int64_t last = output == "pooled" ? c.inputs.at("raw_keys").shape[2] : 3,
                  row = linear / last;
    const Group g = group_of(c, row);
    const std::string what = g.kind == Group::none   ? "not live"
                             : g.kind == Group::step ? "group of this step's rows"
                             : g.kind == Group::ring_invalid
                                 ? "group reaches into an invalid ring block"
                                 : "group reaches into the ring";
    return "row " + std::to_string(row) + " (request " +
           std::to_string(c.inputs.at("token_to_req").integer(row)) + ", position " +
           std::to_string(c.inputs.at("logical_positions").integer(row)) + ", " + what + "), " +
           (output == "pooled" ? "dim " : "axis ") + std::to_string(linear % last);
  }

  Cost cost(const Case& c) const override {
    const Tensor& keys = c.inputs.at("raw_keys");
    const double row = double(keys.shape[2]) * toolkit::bytes_of(keys.dtype);
    const int64_t ratio = scalar_integer(c, "compress_ratio");
    std::set<std::pair<int64_t, int64_t>> members;  // request, position
    double live = 0;
    for (int64_t i = 0; i < keys.shape[0]; ++i) {
      const Group g = group_of(c, i);
      if (g.kind == Group::none) continue;
      ++live;
      for (int64_t o = 0; o < ratio; ++o) members.insert({g.request, g.position + o});
    }
    return {double(members.size()) * row + double(keys.shape[0]) * (row + 24),
            live * double(ratio * keys.shape[2])};
  }

  std::vector<Fault> faults() const override {
    return {
        {"wrong-divisor", "the sum is divided by C + 1",
         [](const Case& c, TensorMap& out) {
           const double ratio = double(scalar_integer(c, "compress_ratio"));
           Tensor& t = out.at("pooled");
           bool any = false;
           for (int64_t i = 0; i < t.count(); ++i)
             if (const double v = t.real(i); v != 0) {
               t.set_real(i, v * ratio / (ratio + 1));
               any = true;
             }
           return any;
         }},
        {"ring-shifted", "the ring is read one row too far",
         [](const Case& c, TensorMap& out) {
           bool any = false;
           for (int64_t i = 0; i < c.inputs.at("raw_keys").shape[0]; ++i)
             any |= group_of(c, i).kind == Group::ring;
           if (!any) return false;
           Case changed = c;
           const Tensor& state = c.inputs.at("compressor_state_cache");
           Tensor shifted = state.packed();
           const int64_t width = state.shape[3], ring = state.shape[1];
           for (int64_t i = 0; i < state.count(); ++i) {
             const int64_t row = i / width, block = row / ring;
             shifted.set_real(i, state.real((block * ring + (row + 1) % ring) * width + i % width));
           }
           replace(changed, "compressor_state_cache", shifted);
           plant_result_of(changed, out);
           return true;
         }},
        {"first-position-off-by-one", "first positions one too high",
         [](const Case&, TensorMap& out) {
           Tensor& t = out.at("first_positions");
           bool any = false;
           for (int64_t i = 0; i < t.count(); ++i)
             if (t.integer(i) != 0) {
               t.set_integer(i, t.integer(i) + 1);
               any = true;
             }
           return any;
         }},
        {"dead-row-written", "a row that is not live gets a value",
         [](const Case& c, TensorMap& out) {
           Tensor& t = out.at("pooled");
           for (int64_t i = 0; i < t.shape[0]; ++i)
             if (group_of(c, i).kind == Group::none) {
               t.set_real(i * t.shape[2], 1);
               return true;
             }
           return false;
         }},
        {"one-nan", "one element is NaN",
         [](const Case&, TensorMap& out) { return plant_nan(out.at("pooled")); }},
    };
  }
};

HARNESS_CARD(CompressCard)

}  // namespace
}  // namespace harness
