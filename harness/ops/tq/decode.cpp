// SPDX-License-Identifier: Apache-2.0
// Card of tq.decode.
#include "tq/decode.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "harness/generate/turboquant.h"
#include "harness/ops/tq_cards.h"

namespace harness {
namespace {

const std::vector<Axis>& decode_axes() {
  static const std::vector<Axis> axes = tq_cache_axes({
      {"heads", "4", "query heads, a multiple of kv_heads"},
      {"dtype", "f16", "of query and output: f16, bf16, f32"},
      {"index", "i32", "of block ids and lengths: i32, i64"},
      {"splits", "32", "num_kv_splits"},
      {"scale", "", "softmax scale; default dim^-0.5"},
      {"pit", "0", "1: PiT comes with Pi"},
      {"hostile", "none",
       "none, bad_blocks, long_seq (beyond the table), negative_seq, nan_key, inf_norm, nan_value, poison_beyond"},
  });
  return axes;
}

void write_half(const Tensor& cache, std::byte* slot, int64_t at, uint16_t bits) {
  slot[at * cache.strides[3]] = std::byte(bits & 0xff);
  slot[(at + 1) * cache.strides[3]] = std::byte(bits >> 8);
}

// The slot of a token of sequence 0's KV head 0.
std::byte* slot_of(const Case& c, int64_t token) {
  const Tensor &table = c.inputs.at("block_table"), &cache = c.inputs.at("kv_cache");
  return cache.data() + cache.at({table.integer(token / cache.shape[1]), token % cache.shape[1], 0, 0});
}

// Spoils sequence 0, so that the others show whether it stays alone.
void corrupt(Case& c, const std::string& hostile, const TqCodebook& book) {
  if (hostile == "none") return;
  Tensor &table = c.inputs["block_table"], &lens = c.inputs["seq_lens"], &cache = c.inputs["kv_cache"];
  const int64_t dim = book.dim, used = tq_used_bytes(book.preset, dim);
  const int64_t length = lens.integer(0);
  if (hostile == "bad_blocks") {
    const int64_t bad[] = {-1, cache.shape[0], -7, 1 << 30};
    for (int64_t b = 0; b < table.shape[0] && b < 4; ++b) table.set_integer(b * table.shape[1], bad[b]);
  } else if (hostile == "long_seq") {
    lens.set_integer(0, table.shape[1] * cache.shape[1] + 37);
  } else if (hostile == "negative_seq") {
    lens.set_integer(0, -3);
  } else if (hostile == "poison_beyond") {  // the last block's slots behind the sequence hold NaN scale and inf norm
    for (int64_t n = length; n % cache.shape[1] != 0; ++n) {
      write_half(cache, slot_of(c, n), used - 4, 0x7e00);
      if (!book.preset.key_fp8) write_half(cache, slot_of(c, n), tq_key_packed_size(book.preset, dim) - 2, 0x7c00);
    }
  } else {
    if (length < 2) throw std::invalid_argument("tq.decode: hostile=" + hostile + ": expected a first sequence of 2 tokens or more");
    std::byte* slot = slot_of(c, length / 2);
    if (hostile == "nan_value") write_half(cache, slot, used - 4, 0x7e00);
    else if (book.preset.key_fp8) *slot = book.flavour == "e4m3fnuz" ? std::byte{0x80} : std::byte{0x7f};
    else write_half(cache, slot, tq_key_packed_size(book.preset, dim) - 2, hostile == "nan_key" ? 0x7e00 : 0x7c00);
  }
}

// No place where the last token weighs less than a thousandth everywhere: an f16 output would not show it.
bool lose_last_token(const Case& c, TensorMap& outputs) {
  Case shorter = c;
  Tensor lens = c.inputs.at("seq_lens").packed();
  for (int64_t b = 0; b < lens.count(); ++b) lens.set_integer(b, lens.integer(b) - 1);
  shorter.inputs["seq_lens"] = lens;
  const Tensor before = oracle_outputs(c).at("lse"), after = oracle_outputs(shorter).at("lse");
  double most = 0;
  for (int64_t i = 0; i < before.count(); ++i)
    if (std::isfinite(before.real(i))) most = std::max(most, 1 - std::exp(after.real(i) - before.real(i)));
  return most > 1e-3 && plant_altered(c, outputs, [&](Case& altered) {
           altered = shorter;
           return true;
         });
}

bool base_2_lse(const Case&, TensorMap& outputs) {
  const auto lse = outputs.find("lse");
  if (lse == outputs.end()) return false;
  bool planted = false;
  for (int64_t i = 0; i < lse->second.count(); ++i) {
    const double natural = lse->second.real(i), binary = natural / std::log(2.0);
    if (!std::isfinite(natural) || std::fabs(binary - natural) < 1e-3) continue;
    lse->second.set_real(i, binary);
    planted = true;
  }
  return planted;
}

bool one_nan(const Case& c, TensorMap& outputs) {
  const auto output = outputs.find("output");
  if (output == outputs.end() || output->second.count() == 0) return false;
  const TensorMap right = oracle_outputs(c);  // an element that is judged: the oracle has a number there
  for (int64_t i = output->second.count(); i-- > 0;)
    if (std::isfinite(right.at("output").real(i))) {
      output->second.set_real(i, NAN);
      return true;
    }
  return false;
}

class DecodeCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return tq::decode::contract; }
  std::span<const Axis> axes() const override { return decode_axes(); }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"4bit-nc", ""},
        {"k8v4", "quant=k8v4"},
        {"k8v3-fnuz-d72", "quant=k8v3 flavour=e4m3fnuz dim=72"},
        {"e4b15-d80", "quant=k8v4 flavour=e4b15 dim=80 dtype=bf16"},
        {"k3v4-d256-group-6", "quant=k3v4_nc dim=256 heads=6 kv_heads=1 batch=1 dtype=bf16 rotation=hadamard"},
        {"3bit-d96-f32", "quant=3bit_nc dim=96 dtype=f32 index=i64"},
        {"3bit-raw-odd-bytes-d72", "quant=3bit_raw dim=72 batch=2 pit=1"},
        {"d128-lengths", "dim=128 lens=5,33,1,0,65 quant=k3v4_raw"},
        {"all-empty", "lens=0,0"},
        {"splits-1", "splits=1 lens=37"},
        {"shared-table-head-major", "table=stride0 layout=head_major lens=46,47,48"},
        {"padded-slots-block-20", "slot_pad=30 layout=padded page=20"},
        {"peaked", "key_scale=30"},
        {"one-token-decides",
         "key_scale=30 ctx=28 heads=80 kv_heads=8 quant=3bit_nc rotation=hadamard page=20 splits=1 table=stride0"},
        {"peaked-f32", "key_scale=30 dtype=f32 dim=128 heads=80 kv_heads=1 batch=2"},
        {"zero-keys", "key_scale=0 batch=1"},
        {"bad-blocks", "hostile=bad_blocks"},
        {"beyond-table", "hostile=long_seq"},
        {"negative-length", "hostile=negative_seq"},
        {"nan-key", "hostile=nan_key"},
        {"nan-value-fp8", "hostile=nan_value quant=k8v4"},
        {"poison-behind-end", "hostile=poison_beyond lens=37,16"},
        // Ways through a tuned kernel: heads in one fragment or two, waves that share a head, halves
        // of the dimensions, more head tiles than a block has waves, pages that end in a short tile.
        {"4bit-nc-d128", "dim=128 heads=8 lens=200,17"},
        {"k8v4-d128-heads-32", "quant=k8v4 dim=128 heads=32 kv_heads=8 lens=130,9"},
        {"3bit-nc-d128-one-kv-head", "quant=3bit_nc dim=128 heads=3 kv_heads=1 lens=300"},
        {"k3v4-nc-d256-group-12", "quant=k3v4_nc dim=256 heads=24 lens=90"},
        {"k8v4-d128-group-10", "quant=k8v4 dim=128 heads=80 kv_heads=8 lens=40 dtype=bf16"},
        {"fnuz-nan-head-major-block-48",
         "quant=k8v4 flavour=e4m3fnuz dim=128 heads=6 page=48 layout=head_major hostile=nan_key lens=70,5"},
        {"4bit-nc-d96-block-20", "dim=96 page=20 lens=50,21"},
        {"k3v4-raw-tile-ends", "quant=k3v4_raw dim=128 lens=65,64,16,15,1 rotation=hadamard dtype=bf16"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), decode_axes(), at);
    const Random random(seed, op());
    const TqCodebook book = tq_codebook(axes);
    const TqCacheShape shape = tq_cache_shape(axes, random);
    const int64_t heads = axes.integer("heads", 1), batch = int64_t(shape.tokens.size());
    if (heads % shape.heads != 0)
      throw std::invalid_argument("tq.decode: axis heads: expected a multiple of kv_heads = " +
                                  std::to_string(shape.heads) + ", got " + std::to_string(heads));
    const tk_dtype index = axes.dtype("index", toolkit::kIndex);
    Case c;
    c.op = op();
    c.seed = seed;
    add_codebook(c, book, true, random);
    add_cache(c, book, shape, random.stream("cache"));
    const std::string scale = axes.word("scale");
    c.scalars["scale"] = scale.empty() ? number(1 / std::sqrt(double(book.dim))) : number(axes.number("scale", -1e9, 1e9));
    c.scalars["num_kv_splits"] = std::to_string(axes.integer("splits", 1));
    Tensor query = make_tensor(axes.dtype("dtype", toolkit::kFloat), {batch, heads, book.dim});
    fill_normal(query, random.stream("query"));
    c.inputs["query"] = query;
    c.inputs["seq_lens"] = from_integers(index, shape.tokens);
    if (index == TK_I64) widen_table(c);
    if (axes.flag("pit") && !book.preset.key_fp8) {
      Tensor transposed = c.inputs["Pi"];
      std::swap(transposed.strides[0], transposed.strides[1]);
      c.inputs["PiT"] = transposed.packed();
    }
    corrupt(c, axes.word("hostile", {"none", "bad_blocks", "long_seq", "negative_seq", "nan_key", "inf_norm", "nan_value",
                                     "poison_beyond"}),
            book);
    const Tensor& cache = c.inputs["kv_cache"];
    c.shape = "B=" + std::to_string(batch) + " Hq=" + std::to_string(heads) + " Hk=" + std::to_string(shape.heads) +
              " D=" + std::to_string(book.dim) + " ctx=" + std::to_string(*std::max_element(shape.tokens.begin(), shape.tokens.end())) +
              " S=" + std::to_string(cache.shape[1]) + " slot=" + std::to_string(cache.shape[3]);
    return c;
  }

  void check_data(const Case& c) const override { check_rotation(c, contract()); }
  std::vector<std::string> findings(const Case& c) const override { return cache_findings(c); }

  std::vector<std::string_view> row_inputs() const override {
    return {"query", "block_table", "seq_lens"};
  }

  std::string place(const Case& c, std::string_view output, int64_t linear) const override {
    const Shape& q = c.inputs.at("query").shape;
    if (output == "lse") return place_of(linear, {{"batch", q[0]}, {"head", q[1]}});
    return place_of(linear, {{"batch", q[0]}, {"head", q[1]}, {"dim", q[2]}});
  }

  // Bytes of every live slot once, whatever the group size; four operations a token, head and element, and the rotation.
  Cost cost(const Case& c) const override {
    const Shape& q = c.inputs.at("query").shape;
    const double tokens = double(live_tokens(c)), dim = double(q[2]), rows = double(q[0] * q[1]);
    const int64_t kv_heads = c.inputs.at("kv_cache").shape[2];
    const bool rotated = !flag_of(c, "key_fp8");
    Cost cost;
    cost.bytes = tokens * double(kv_heads * used_slot_bytes(c, q[2])) + 2 * tensor_bytes(c, "query") + 4 * rows +
                 tensor_bytes(c, "block_table") + tensor_bytes(c, "seq_lens");
    if (rotated) cost.bytes += tensor_bytes(c, "Pi") + tensor_bytes(c, "centroids");
    cost.flops = 4 * tokens * double(q[1]) * dim + (rotated ? 2 * rows * dim * dim : 0);
    return cost;
  }

  std::vector<Fault> faults() const override {
    return {
        {"rotation-transposed", "queries rotated by Pi instead of its transpose",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, transpose_rotation); }},
        {"rotation-skipped", "queries not rotated",
         [](const Case& c, TensorMap& o) {
           return plant_altered(c, o, [](Case& a) {
             if (flag_of(a, "key_fp8")) return false;
             a.inputs["Pi"] = tq_rotation("identity", last_dim(a, "query"), Random(0, ""));
             a.inputs.erase("PiT");
             return true;
           });
         }},
        {"norm-correction-flipped", "centroid vectors divided by their norm where they should not be, or the reverse",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, flip_norm_correction); }},
        {"scale-missing", "scores not multiplied by the softmax scale",
         [](const Case& c, TensorMap& o) {
           return plant_altered(c, o, [](Case& a) { return std::exchange(a.scalars["scale"], "1") != "1"; });
         }},
        {"last-token-lost", "the last token of each sequence not attended to", lose_last_token},
        {"base-2-lse", "lse in base 2", base_2_lse},
        {"one-nan", "one output element is NaN", one_nan},
        {"value-nibbles-swapped", "the two 4-bit value codes of a byte exchanged",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, swap_value_nibbles); }},
        {"zero-point-dropped", "values without their zero point",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, drop_zero_points); }},
    };
  }

 private:
  static std::string number(double v) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", v);
    return text;
  }
  static void widen_table(Case& c) {
    const Tensor narrow = c.inputs["block_table"];
    std::vector<int64_t> entries;
    for (int64_t i = 0; i < narrow.count(); ++i) entries.push_back(narrow.integer(i));
    c.inputs["block_table"] = from_integers(TK_I64, entries, narrow.shape);
  }
};

HARNESS_CARD(DecodeCard)

}  // namespace
}  // namespace harness
