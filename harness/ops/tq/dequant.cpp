// SPDX-License-Identifier: Apache-2.0
// Card of tq.dequant.
#include "tq/dequant.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/generate/sizes_only.h"
#include "harness/generate/turboquant.h"
#include "harness/judge/compare.h"
#include "harness/ops/tq_cards.h"

namespace harness {
namespace {

// A kernel may pass a NaN on with its payload; with that of the outputs' poison (0x7e5a, quiet or not, of either sign) its
// result would count as never written.
void avoid_poison(const Tensor& cache) {
  each_slot(cache, [&](std::byte* slot, int64_t step) {
    for (int64_t i = 1; i < cache.shape[3]; ++i)
      if (slot[(i - 1) * step] == std::byte{0x5a} && (slot[i * step] & std::byte{0x7d}) == std::byte{0x7c})
        slot[(i - 1) * step] = std::byte{0x5b};
  });
}

const std::vector<Axis>& dequant_axes() {
  static const std::vector<Axis> axes = tq_cache_axes({
      {"tokens", "", "tokens to write; default all that the table reaches"},
      {"index", "i32", "of block ids: i32, i64"},
      {"value_scale", "1", "standard deviation of value elements"},
      {"bytes", "encoded", "encoded, any (random bytes: every code, norm, scale and zero)"},
  });
  return axes;
}

class DequantCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return tq::dequant::contract; }
  std::span<const Axis> axes() const override { return dequant_axes(); }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"4bit-nc", "ctx=32 batch=2"},
        {"k8v4-tokens-37", "quant=k8v4 tokens=37 batch=2"},
        {"k8v3-fnuz-d72", "quant=k8v3 flavour=e4m3fnuz dim=72 batch=1"},
        {"e4b15-d80", "quant=k8v4 flavour=e4b15 dim=80 batch=1"},
        {"k3v4-d128-block-20", "quant=k3v4_nc dim=128 page=20 batch=1"},
        {"3bit-d96", "quant=3bit_nc dim=96 batch=1"},
        {"3bit-raw-odd-bytes-d72", "quant=3bit_raw dim=72 batch=1"},
        {"4bit-raw-d256", "quant=4bit_raw dim=256 kv_heads=1 batch=1 ctx=16"},
        {"beyond-table", "tokens=100 lens=20,33"},
        {"any-bytes", "bytes=any quant=4bit_raw batch=1"},
        {"any-bytes-nc", "bytes=any quant=3bit_nc batch=1"},
        {"any-bytes-fp8", "bytes=any quant=k8v4 batch=1"},
        {"overflow", "key_scale=9000 value_scale=20000 batch=1"},
        {"shared-table-padded", "table=stride0 layout=padded slot_pad=3 lens=20,21 index=i64"},
        {"k3v4-heads-8", "quant=k3v4_nc dim=128 kv_heads=8 lens=35 table=reversed"},
        {"k8v4-heads-8", "quant=k8v4 dim=128 kv_heads=8 lens=35"},
        {"heads-40-d16", "quant=4bit_nc dim=16 kv_heads=40 lens=21"},
        {"any-bytes-fnuz-head-major", "bytes=any quant=k8v3 flavour=e4m3fnuz dim=128 batch=1 layout=head_major"},
        {"no-tokens", "tokens=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), dequant_axes(), at);
    const Random random(seed, op());
    const TqCodebook book = tq_codebook(axes);
    TqCacheShape shape = tq_cache_shape(axes, random);
    shape.value_scale = axes.number("value_scale", 0, 1e9);
    Case c;
    c.op = op();
    c.seed = seed;
    add_codebook(c, book, false, random);
    add_cache(c, book, shape, random.stream("cache"));
    if (axes.word("bytes", {"encoded", "any"}) == "any" && !sizes_only()) {
      fill_bytes(c.inputs["kv_cache"], random.stream("bytes"));
      avoid_poison(c.inputs["kv_cache"]);
    }
    if (axes.dtype("index", toolkit::kIndex) == TK_I64) {
      const Tensor narrow = c.inputs["block_table"];
      std::vector<int64_t> entries;
      for (int64_t i = 0; i < narrow.count(); ++i) entries.push_back(narrow.integer(i));
      c.inputs["block_table"] = from_integers(TK_I64, entries, narrow.shape);
    }
    c.scalars["head_dim"] = std::to_string(book.dim);
    if (!axes.word("tokens").empty()) c.scalars["tokens"] = std::to_string(axes.integer("tokens"));
    c.shape = "B=" + std::to_string(shape.tokens.size()) + " Hk=" + std::to_string(shape.heads) +
              " D=" + std::to_string(book.dim) + " tokens=" + std::to_string(tokens(c)) + " S=" + std::to_string(shape.page_size);
    return c;
  }

  // Neither the head size nor, often, the number of tokens stands in a dump: its results say both.
  void complete(Case& c) const override {
    for (const TensorMap* given : {&c.actual, &c.expected})
      for (const char* name : {"k", "v"}) {
        const auto it = given->find(name);
        if (it == given->end() || it->second.shape.size() != 4) continue;
        c.scalars.emplace("tokens", std::to_string(it->second.shape[2]));
        c.scalars.emplace("head_dim", std::to_string(it->second.shape[3]));
      }
  }

  std::vector<std::string> findings(const Case& c) const override { return cache_findings(c); }

  // Bits where bits are due: the comparison of numbers lets -0 pass for 0.
  Verdict judge(const Case& c, const reference::Result& oracle, const TensorMap& actual) const override {
    Verdict verdict = Card::judge(c, oracle, actual);
    for (const auto& [name, tensor] : actual) {
      const reference::Output& truth = oracle.outputs.find(name)->second;
      for (int64_t i = 0; i < tensor.count(); ++i) {
        if (truth.bound[size_t(i)] != 0 || truth.value[size_t(i)] != 0) continue;
        const double got = tensor.real(i);
        if (got != 0 || std::signbit(got) == std::signbit(truth.value[size_t(i)])) continue;
        ++verdict.mismatches;
        if (verdict.status == Status::pass) {
          verdict.status = Status::fail;
          verdict.reason = name + ": a zero of the wrong sign";
        }
        if (verdict.first_bad.empty())
          verdict.first_bad = name + ": " + place(c, name, i) + ": expected " + (std::signbit(got) ? "0" : "-0") +
                              ", got " + (std::signbit(got) ? "-0" : "0");
      }
    }
    return verdict;
  }

  std::vector<std::string_view> row_inputs() const override {
    return {"block_table"};
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const Shape shape = output_shape(c);
    const int64_t token = linear / shape[3] % shape[2], sequence = linear / (shape[3] * shape[2] * shape[1]);
    return place_of(linear, {{"batch", shape[0]}, {"head", shape[1]}, {"token", shape[2]}, {"dim", shape[3]}}) + " (" +
           block_place(c, sequence, token) + ")";
  }

  Cost cost(const Case& c) const override {
    const Shape shape = output_shape(c);
    const double vectors = double(shape[0] * shape[1] * shape[2]), elements = vectors * double(shape[3]);
    return {vectors * double(used_slot_bytes(c, shape[3])) + 2 * 2 * elements + tensor_bytes(c, "block_table") +
                tensor_bytes(c, "centroids"),
            elements * (flag_of(c, "norm_correction") ? 6 : 4)};
  }

  std::vector<Fault> faults() const override {
    return {
        {"norm-correction-flipped", "centroid vectors divided by their norm where they should not be, or the reverse",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, flip_norm_correction); }},
        {"value-nibbles-swapped", "the two 4-bit value codes of a byte exchanged",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, swap_value_nibbles); }},
        {"zero-point-dropped", "values without their zero point",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, drop_zero_points); }},
        {"one-value-ulp", "one value is the next f16 number", next_value},
    };
  }

 private:
  static int64_t tokens(const Case& c) {
    const HostCall call(c);
    return tq::dequant::tokens(toolkit::Args(tq::dequant::contract, call.call()));
  }
  static Shape output_shape(const Case& c) {
    const HostCall call(c);
    return tq::dequant::outputs(toolkit::Args(tq::dequant::contract, call.call()))[0].shape;
  }
  static bool next_value(const Case&, TensorMap& outputs) {
    const auto v = outputs.find("v");
    if (v == outputs.end()) return false;
    for (int64_t i = 0; i < v->second.count(); ++i) {
      const double x = v->second.real(i);
      if (!std::isfinite(x) || x == 0) continue;
      uint16_t bits;
      std::memcpy(&bits, v->second.element(i), sizeof bits);
      ++bits;
      std::memcpy(v->second.element(i), &bits, sizeof bits);
      return true;
    }
    return false;
  }
};

HARNESS_CARD(DequantCard)

}  // namespace
}  // namespace harness
