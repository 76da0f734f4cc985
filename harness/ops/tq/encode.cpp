// SPDX-License-Identifier: Apache-2.0
// Card of tq.encode.
#include "tq/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "harness/generate/turboquant.h"
#include "harness/judge/compare.h"
#include "harness/ops/tq_cards.h"
#include "harness/ops/tq_encode_judge.h"
#include "harness/ops/tq_quality.h"

namespace harness {
namespace {

constexpr Axis kAxes[] = {
    {"tokens", "24", "tokens to encode"},
    {"kv_heads", "2", "KV heads"},
    {"dim", "64", "head size"},
    {"blocks", "3", "blocks of the cache"},
    {"page", "16", "tokens of a block"},
    {"quant", "4bit_nc", "k8v4, k8v3, 4bit_nc, k3v4_nc, 3bit_nc, 4bit_raw, k3v4_raw, 3bit_raw"},
    {"flavour", "e4m3fn", "of fp8 keys: e4m3fn, e4m3fnuz, e4b15"},
    {"rotation", "orthogonal", "Pi: hadamard, exchanged (two rows of it), orthogonal, identity"},
    {"layout", "separate", "of the cache: separate, head_major, padded"},
    {"pad", "3", "layout=padded: unused rows of slots behind a block"},
    {"slot_pad", "0", "bytes a slot is larger than needed"},
    {"dtype", "f16", "of keys and values: f16, bf16, f32"},
    {"index", "i64", "of the slots: i64, i32"},
    {"key_scale", "1", "standard deviation of key elements"},
    {"value_scale", "1", "standard deviation of value elements"},
    {"hostile", "none",
     "none, skipped (slots outside), duplicates, nonfinite, large (values beyond f16), flat (constant and zero vectors, "
     "-0, tiny numbers), one_hot (keys with one element: many ties)"},
};

// Spoils the first tokens, one way each.
void corrupt(Case& c, const std::string& hostile, int64_t slots) {
  Tensor &key = c.inputs["key"], &value = c.inputs["value"], &mapping = c.inputs["slot_mapping"];
  const int64_t tokens = key.shape[0], width = key.shape[1] * key.shape[2];
  const auto fill = [&](Tensor& t, int64_t token, double x) {
    for (int64_t i = 0; token < tokens && i < width; ++i) t.set_real(token * width + i, x);
  };
  const auto one = [&](Tensor& t, int64_t token, double x) {
    if (token < tokens) t.set_real(token * width + width / 2, x);
  };
  if (hostile == "skipped") {
    const int64_t bad[] = {-1, slots, slots + 5, -7};
    for (int64_t n = 0; n < tokens; n += 3) mapping.set_integer(n, bad[n / 3 % 4]);
  } else if (hostile == "duplicates") {
    for (int64_t n = 1; n < tokens; n += 4) mapping.set_integer(n, mapping.integer(n - 1));
  } else if (hostile == "nonfinite") {
    one(key, 0, NAN);
    one(key, 1, INFINITY);
    one(value, 2, NAN);
    one(value, 3, -INFINITY);
  } else if (hostile == "large") {
    const double outliers[] = {-125000, 125000, 65504, -65519, -65520, 3e38, -3e38};
    for (int64_t n = 0; n < 7; ++n) one(value, n, outliers[n]);
    fill(key, 7, 20000);
    fill(key, 8, -3e30);
  } else if (hostile == "flat") {
    const double constants[] = {0, 3.25, -0.0, 1e-9, 65504};
    for (int64_t n = 0; n < 5; ++n) fill(value, n, constants[n]);
    fill(key, 0, 0);
    fill(key, 1, -0.0);
    fill(key, 2, 0);
    one(key, 2, 1e-40);
    fill(key, 3, 1e-6);
  } else if (hostile == "one_hot") {
    for (int64_t n = 0; n < tokens; ++n) {
      fill(key, n, 0);
      for (int64_t h = 0; h < key.shape[1]; ++h)
        key.set_real(n * width + h * key.shape[2] + (n * 7 + h) % key.shape[2], n % 2 ? -2.5 : 1.0);
    }
  }
}

// Applies change(slot address, step, used bytes) to every slot that a token wrote.
template <class Change>
bool change_slots(const Case& c, TensorMap& outputs, Change&& change) {
  const auto it = outputs.find("kv_cache");
  if (it == outputs.end()) return false;
  const Tensor& cache = it->second;
  const int64_t used = used_slot_bytes(c, last_dim(c, "key"));
  bool any = false;
  for (const auto& [slot, tokens] : wanted_slots(c))
    for (int64_t h = 0; h < cache.shape[2]; ++h)
      any |= change(cache.element((slot * cache.shape[2] + h) * cache.shape[3]), cache.strides[3], used);
  return any;
}

class EncodeCard final : public Card {
 public:
  const toolkit::Contract& contract() const override { return tq::encode::contract; }
  std::span<const Axis> axes() const override { return kAxes; }

  std::vector<SuiteEntry> suite() const override {
    return {
        {"4bit-nc", ""},
        {"k8v4", "quant=k8v4"},
        {"k8v3-fnuz-d72", "quant=k8v3 flavour=e4m3fnuz dim=72 key_scale=100"},
        {"e4b15-bf16", "quant=k8v4 flavour=e4b15 dtype=bf16"},
        {"fp8-saturated", "quant=k8v4 key_scale=300 dtype=f32"},
        {"k3v4-d128-hadamard", "quant=k3v4_nc dim=128 rotation=hadamard tokens=12"},
        {"3bit-d80-bf16", "quant=3bit_nc dim=80 dtype=bf16"},
        {"4bit-d256", "dim=256 kv_heads=1 tokens=8"},
        {"padding-bits-d100", "quant=3bit_nc dim=100 rotation=orthogonal tokens=10 dtype=f32"},
        {"padded-slots-head-major", "layout=head_major slot_pad=7 page=20 index=i32"},
        {"skipped-slots", "hostile=skipped"},
        {"duplicate-slots", "hostile=duplicates"},
        {"nonfinite", "hostile=nonfinite dtype=f32"},
        {"large-values", "hostile=large dtype=f32"},
        {"flat-vectors", "hostile=flat dtype=f32 quant=3bit_nc"},
        {"one-hot-keys", "hostile=one_hot rotation=hadamard dim=128 tokens=12"},
        {"3bit-bf16-heads-8", "quant=3bit_nc dim=128 dtype=bf16 kv_heads=8 tokens=20 blocks=2"},
        {"duplicates-across-blocks", "hostile=duplicates quant=k3v4_nc dim=128 dtype=bf16 tokens=90 kv_heads=3 blocks=6"},
        {"nonfinite-f16", "hostile=nonfinite quant=3bit_nc"},
        {"large-bf16", "hostile=large dtype=bf16 dim=128"},
        {"flat-bf16", "hostile=flat dtype=bf16"},
        {"k8v4-nonfinite-bf16", "hostile=nonfinite quant=k8v4 dtype=bf16 dim=80 kv_heads=3"},
        {"hadamard-several-rounds", "rotation=hadamard dim=128 quant=k3v4_nc tokens=150 kv_heads=5 blocks=10"},
        {"hadamard-d64-bf16", "rotation=hadamard quant=3bit_nc dtype=bf16 kv_heads=3"},
        {"hadamard-d256-f32", "rotation=hadamard dim=256 dtype=f32 tokens=8"},
        {"nearly-hadamard", "rotation=exchanged dim=128 quant=k3v4_nc tokens=150 kv_heads=5 blocks=10"},
        {"nearly-hadamard-d64-bf16", "rotation=exchanged quant=3bit_nc dtype=bf16 kv_heads=3"},
        {"hadamard-flat", "rotation=hadamard hostile=flat dtype=bf16 quant=3bit_nc"},
        {"hadamard-nonfinite", "rotation=hadamard hostile=nonfinite dim=128"},
        {"k8v4-d256-several-rounds", "quant=k8v4 dim=256 tokens=150 kv_heads=5 blocks=10"},
        {"no-tokens", "tokens=0"},
    };
  }

  Case generate(const Coordinates& at, uint64_t seed) const override {
    const Axes axes(op(), kAxes, at);
    const Random random(seed, op());
    const TqCodebook book = tq_codebook(axes);
    const int64_t tokens = axes.integer("tokens"), heads = axes.integer("kv_heads", 1);
    CacheShape shape;
    shape.dtype = TK_U8;
    shape.pages = axes.integer("blocks", 1);
    shape.page_size = axes.integer("page", 1);
    shape.heads = heads;
    shape.dim = tq_slot_bytes(book.preset, book.dim) + axes.integer("slot_pad");
    shape.layout = cache_layout(axes.word("layout", {"separate", "head_major", "padded"}));
    shape.pad_rows = axes.integer("pad", 0, kMostPadRows);
    const int64_t slots = shape.pages * shape.page_size;
    if (tokens > slots)
      throw std::invalid_argument("tq.encode: axis tokens: expected at most blocks * page = " + std::to_string(slots) +
                                  ", got " + std::to_string(tokens));
    Case c;
    c.op = op();
    c.seed = seed;
    c.shape = "N=" + std::to_string(tokens) + " Hk=" + std::to_string(heads) + " D=" + std::to_string(book.dim) +
              " slot=" + std::to_string(shape.dim);
    add_codebook(c, book, true, random);
    Tensor cache = make_cache(shape);
    fill_bytes(cache, random.stream("kv_cache"));  // what a skipped slot and the bytes behind a slot's end have to keep
    c.inputs["kv_cache"] = cache;
    const tk_dtype dtype = axes.dtype("dtype", toolkit::kFloat);
    for (const char* name : {"key", "value"}) {
      Tensor t = make_tensor(dtype, {tokens, heads, book.dim});
      fill_normal(t, random.stream(name), axes.number(std::string(name) + "_scale", 0, 1e30));
      c.inputs[name] = t;
    }
    std::vector<int64_t> mapping = random.stream("slots").shuffle(slots);
    mapping.resize(size_t(tokens));
    c.inputs["slot_mapping"] = from_integers(axes.dtype("index", toolkit::kIndex), mapping);
    corrupt(c, axes.word("hostile", {"none", "skipped", "duplicates", "nonfinite", "large", "flat", "one_hot"}), slots);
    return c;
  }

  void check_data(const Case& c) const override { check_rotation(c, contract()); }

  std::vector<std::string> findings(const Case& c) const override {
    std::vector<std::string> out;
    const Tensor &mapping = c.inputs.at("slot_mapping"), &cache = c.inputs.at("kv_cache");
    const int64_t slots = cache.shape[0] * cache.shape[1];
    int64_t beyond = 0;
    for (int64_t n = 0; n < mapping.count(); ++n) beyond += mapping.integer(n) >= slots;
    if (beyond)
      out.push_back(std::to_string(beyond) + " slots are beyond the cache's " + std::to_string(slots) + "; skipped");
    int64_t duplicates = 0;
    for (const auto& [slot, tokens] : wanted_slots(c)) {
      if (tokens.size() < 2 || duplicates++ > 3) continue;
      out.push_back("duplicate slot " + std::to_string(slot) + " (tokens " + std::to_string(tokens[0]) + ", " +
                    std::to_string(tokens[1]) + (tokens.size() > 2 ? ", ...)" : ")") + ": any of them is accepted");
    }
    return out;
  }

  Verdict judge(const Case& c, const reference::Result& oracle, const TensorMap& actual) const override {
    const auto it = actual.find("kv_cache");
    const Tensor& before = c.inputs.at("kv_cache");
    if (it == actual.end() || it->second.shape != before.shape || it->second.dtype != before.dtype)
      return Card::judge(c, oracle, actual);  // which refuses it by name
    const AcceptedCache accepted = accepted_cache(c, oracle, it->second);
    reference::Result near;
    near.findings = oracle.findings;
    near.outputs.emplace("kv_cache", accepted.bytes);
    Verdict verdict = Card::judge(c, near, actual);
    if (accepted.nonfinite) {
      verdict.nonfinite += accepted.nonfinite;
      verdict.reason += ", non-finite metadata in " + std::to_string(accepted.nonfinite) + " slots, first " +
                        accepted.first_nonfinite;
    }
    if (verdict.status == Status::pass)
      if (std::string quality = encode_quality(c, it->second); !quality.empty())
        verdict.notes.push_back(std::move(quality));
    return verdict;
  }

  std::string place(const Case& c, std::string_view, int64_t linear) const override {
    const Shape& s = c.inputs.at("kv_cache").shape;
    const HostCall call(c);
    const tq::SlotLayout l = tq::slot_layout(toolkit::Args(tq::encode::contract, call.call()), last_dim(c, "key"));
    const int64_t byte = linear % s[3];
    const auto dims = [&](int64_t at, int64_t bits) {
      const int64_t first = (byte - at) * 8 / bits, last = std::min(((byte - at) * 8 + 7) / bits, l.head_dim - 1);
      return "of dim " + std::to_string(first) + (last > first ? ".." + std::to_string(last) : "");
    };
    std::string what = "outside the fields";
    if (byte < l.code_bytes) what = "key code " + dims(0, l.key_bits);
    else if (l.norm_at >= 0 && byte >= l.norm_at && byte < l.norm_at + 2) what = "norm";
    else if (byte >= l.value_at && byte < l.scale_at) what = "value code " + dims(l.value_at, l.value_bits);
    else if (byte >= l.scale_at && byte < l.zero_at) what = "scale";
    else if (byte >= l.zero_at && byte < l.used) what = "zero";
    return place_of(linear, {{"block", s[0]}, {"position", s[1]}, {"head", s[2]}, {"byte", s[3]}}) + " (" + what + ")";
  }

  // Vectors read once, the fields of their slots written once, the rotation read once.
  Cost cost(const Case& c) const override {
    const Shape& key = c.inputs.at("key").shape;
    const double vectors = double(wanted_slots(c).size()) * double(key[1]), dim = double(key[2]);
    const double element = toolkit::bytes_of(c.inputs.at("key").dtype) + toolkit::bytes_of(c.inputs.at("value").dtype);
    const bool rotated = !flag_of(c, "key_fp8");
    return {vectors * (element * dim + double(used_slot_bytes(c, key[2]))) + tensor_bytes(c, "slot_mapping") +
                (rotated ? tensor_bytes(c, "Pi") + tensor_bytes(c, "centroids") : 0),
            vectors * ((rotated ? 2 * dim * dim + 3 * dim : 0) + 4 * dim)};
  }

  std::vector<Fault> faults() const override {
    return {
        {"rotation-transposed", "keys rotated by Pi's transpose",
         [](const Case& c, TensorMap& o) { return plant_altered(c, o, transpose_rotation); }},
        {"norm-missing", "every key norm stored as 1", norm_missing},
        {"value-nibbles-swapped", "the two 4-bit value codes of a byte exchanged", nibbles_swapped},
        {"zero-point-dropped", "zero stored as 0",
         [](const Case& c, TensorMap& o) {
           return change_slots(c, o, [](std::byte* slot, int64_t step, int64_t used) {
             const bool any = slot[(used - 2) * step] != std::byte{0} || slot[(used - 1) * step] != std::byte{0};
             slot[(used - 2) * step] = slot[(used - 1) * step] = std::byte{0};
             return any;
           });
         }},
        {"last-token-lost", "the last token's slot not written", last_token_lost},
        {"overrun", "a byte behind the used part of a slot changed",
         [](const Case& c, TensorMap& o) {
           const int64_t bytes = last_dim(c, "kv_cache");
           return change_slots(c, o, [&](std::byte* slot, int64_t step, int64_t used) {
             if (used < bytes) slot[used * step] ^= std::byte{1};
             return used < bytes;
           });
         }},
        {"scale-infinite", "one scale is infinite",
         [](const Case& c, TensorMap& o) {
           bool first = true;
           return change_slots(c, o, [&](std::byte* slot, int64_t step, int64_t used) {
             if (!std::exchange(first, false)) return false;
             slot[(used - 4) * step] = std::byte{0};
             slot[(used - 3) * step] = std::byte{0x7c};
             return true;
           });
         }},
    };
  }

 private:
  static bool norm_missing(const Case& c, TensorMap& outputs) {
    if (flag_of(c, "key_fp8")) return false;
    const HostCall call(c);
    const int64_t at = tq::slot_layout(toolkit::Args(tq::encode::contract, call.call()), last_dim(c, "key")).norm_at;
    return change_slots(c, outputs, [&](std::byte* slot, int64_t step, int64_t) {
      slot[at * step] = std::byte{0};
      slot[(at + 1) * step] = std::byte{0x3c};
      return true;
    });
  }
  static bool nibbles_swapped(const Case& c, TensorMap& outputs) {
    if (c.scalars.at("value_quant_bits") != "4") return false;
    const int64_t first = std::stoll(c.scalars.at("key_packed_size"));
    return change_slots(c, outputs, [&](std::byte* slot, int64_t step, int64_t used) {
      bool any = false;
      for (int64_t i = first; i < used - 4; ++i) {
        const std::byte swapped = slot[i * step] >> 4 | slot[i * step] << 4;
        any |= swapped != slot[i * step];
        slot[i * step] = swapped;
      }
      return any;
    });
  }
  static bool last_token_lost(const Case& c, TensorMap& outputs) {
    const auto it = outputs.find("kv_cache");
    const Tensor& mapping = c.inputs.at("slot_mapping");
    const auto wanted = wanted_slots(c);
    if (it == outputs.end()) return false;
    for (int64_t n = mapping.count(); n-- > 0;) {
      const auto slot = wanted.find(mapping.integer(n));
      if (slot == wanted.end() || slot->second.size() != 1) continue;
      const Tensor& before = c.inputs.at("kv_cache");
      const int64_t bytes = before.shape[2] * before.shape[3];
      for (int64_t i = 0; i < bytes; ++i)
        *it->second.element(slot->first * bytes + i) = *before.element(slot->first * bytes + i);
      return true;
    }
    return false;
  }
};

HARNESS_CARD(EncodeCard)

}  // namespace
}  // namespace harness
