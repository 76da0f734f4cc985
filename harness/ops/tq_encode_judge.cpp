// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/tq_encode_judge.h"

#include <cmath>
#include <cstring>

#include "harness/ops/tq_cards.h"
#include "harness/tensors/numbers.h"
#include "tq/encode.h"

namespace harness {

namespace {

using Bytes = std::vector<uint8_t>;

int code_at(const Bytes& slot, int64_t at, int64_t bits, int64_t d) {
  int code = 0;
  for (int64_t j = 0; j < bits; ++j)
    code |= ((slot[size_t(at + (d * bits + j) / 8)] >> ((d * bits + j) % 8)) & 1) << j;
  return code;
}
void set_code(Bytes& slot, int64_t at, int64_t bits, int64_t d, int64_t code) {
  for (int64_t j = 0; j < bits; ++j) {
    const size_t byte = size_t(at + (d * bits + j) / 8);
    const int shift = int((d * bits + j) % 8);
    slot[byte] = uint8_t((slot[byte] & ~(1 << shift)) | (((code >> j) & 1) << shift));
  }
}
double half_at(const Bytes& slot, int64_t at) {
  return decode_real(TK_F16, reinterpret_cast<const std::byte*>(slot.data() + at));
}

class Acceptance {
 public:
  Acceptance(const Case& c, const reference::Result& oracle) : c_(c), oracle_(oracle) {
    const HostCall call(c);
    const toolkit::Args args(tq::encode::contract, call.call());
    layout_ = tq::slot_layout(args, c.inputs.at("key").shape[2]);
    e4m3fn_ = layout_.key_fp8 && tq::fp8_flavour(args) == TK_E4M3FN;
  }

  const tq::SlotLayout& layout() const { return layout_; }

  // The slot that token vector `vector` makes of `before`, as near to `actual` as is right.
  Bytes slot(int64_t vector, const Bytes& before, const Bytes& actual) const {
    Bytes out = before;
    codes(out, actual, 0, layout_.key_bits, "key_code_low", "key_code_high", "key_code", vector);
    if (layout_.norm_at >= 0) field(out, actual, layout_.norm_at, "norm", vector);
    Bytes values = out;
    value_part(values, actual, "value_code_low", "value_code_high", "scale", "zero", vector);
    if (std::memcmp(&values[size_t(layout_.value_at)], &actual[size_t(layout_.value_at)],
                    size_t(layout_.used - layout_.value_at)) == 0)
      return values;
    value_part(out, actual, "other_code_low", "other_code_high", "other_scale", "other_zero", vector);
    if (std::memcmp(&out[size_t(layout_.value_at)], &actual[size_t(layout_.value_at)],
                    size_t(layout_.used - layout_.value_at)) == 0)
      return out;
    return values;
  }

  // The first of the slot's f16 fields that is NaN or inf where a number is due, or nullptr.
  const char* nonfinite_field(int64_t vector, const Bytes& actual) const {
    const std::pair<const char*, int64_t> fields[] = {
        {"norm", layout_.norm_at}, {"scale", layout_.scale_at}, {"zero", layout_.zero_at}};
    for (const auto& [name, at] : fields) {
      if (at < 0) continue;
      const reference::Output& truth = output(name);
      if (truth.judged[size_t(vector)] && std::isfinite(truth.value[size_t(vector)]) && !std::isfinite(half_at(actual, at)))
        return name;
    }
    return nullptr;
  }

 private:
  const reference::Output& output(const char* name) const { return oracle_.outputs.find(name)->second; }

  void value_part(Bytes& out, const Bytes& actual, const char* low, const char* high, const char* scale, const char* zero,
                  int64_t vector) const {
    codes(out, actual, layout_.value_at, layout_.value_bits, low, high, nullptr, vector);
    field(out, actual, layout_.scale_at, scale, vector);
    field(out, actual, layout_.zero_at, zero, vector);
  }

  void codes(Bytes& out, const Bytes& actual, int64_t at, int64_t bits, const char* low, const char* high,
             const char* exact, int64_t vector) const {
    const reference::Output &from = output(low), &to = output(high);
    std::memset(&out[size_t(at)], 0, size_t(tq::packed_bytes(layout_.head_dim, bits)));  // padding bits are 0
    for (int64_t d = 0; d < layout_.head_dim; ++d) {
      const size_t i = size_t(vector * layout_.head_dim + d);
      const int got = code_at(actual, at, bits, d);
      bool right = !from.judged[i] || (got >= from.integer[i] && got <= to.integer[i]);
      if (e4m3fn_ && bits == 8 && from.integer[i] == 0x7f) right = (got & 0x7f) == 0x7f;  // a NaN of either sign
      set_code(out, at, bits, d, right ? got : exact ? output(exact).integer[i] : from.integer[i]);
    }
  }

  void field(Bytes& out, const Bytes& actual, int64_t at, const char* name, int64_t vector) const {
    const reference::Output& truth = output(name);
    const double value = truth.value[size_t(vector)], got = half_at(actual, at);
    const bool right = !truth.judged[size_t(vector)] ||
                       (std::isnan(value) ? std::isnan(got) : std::fabs(got - value) <= truth.bound[size_t(vector)]);
    if (right) {
      out[size_t(at)] = actual[size_t(at)];
      out[size_t(at + 1)] = actual[size_t(at + 1)];
      return;
    }
    std::byte two[2];
    encode_real(TK_F16, value, two);
    std::memcpy(&out[size_t(at)], two, 2);
  }

  const Case& c_;
  const reference::Result& oracle_;
  tq::SlotLayout layout_;
  bool e4m3fn_ = false;
};

Bytes slot_bytes(const Tensor& cache, int64_t linear) {
  Bytes bytes(size_t(cache.shape[3]));
  const std::byte* p = cache.element(linear);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t(p[int64_t(i) * cache.strides[3]]);
  return bytes;
}

}  // namespace

std::map<int64_t, std::vector<int64_t>> wanted_slots(const Case& c) {
  const Tensor &mapping = c.inputs.at("slot_mapping"), &cache = c.inputs.at("kv_cache");
  std::map<int64_t, std::vector<int64_t>> wanted;
  for (int64_t n = 0; n < mapping.count(); ++n)
    if (const int64_t slot = mapping.integer(n); slot >= 0 && slot < cache.shape[0] * cache.shape[1])
      wanted[slot].push_back(n);
  return wanted;
}

AcceptedCache accepted_cache(const Case& c, const reference::Result& oracle, const Tensor& actual) {
  const Tensor& before = c.inputs.at("kv_cache");
  const int64_t heads = before.shape[2], bytes = before.shape[3];
  const Acceptance acceptance(c, oracle);
  AcceptedCache out;
  out.bytes = oracle.outputs.find("kv_cache")->second;
  for (const auto& [slot, tokens] : wanted_slots(c)) {
    // One token for all heads of the slot: the last that fits entirely, else the last.
    for (size_t i = tokens.size(); i-- > 0;) {
      bool fits = true;
      std::vector<Bytes> made;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (slot * heads + h) * bytes;
        const Bytes got = slot_bytes(actual, at);
        made.push_back(acceptance.slot(tokens[i] * heads + h, slot_bytes(before, at), got));
        fits = fits && made.back() == got;
      }
      if (!fits && i + 1 != tokens.size()) continue;
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(&out.bytes.bytes[size_t((slot * heads + h) * bytes)], made[size_t(h)].data(), size_t(bytes));
      if (fits) break;
    }
    for (int64_t h = 0; h < heads; ++h) {
      const Bytes got = slot_bytes(actual, (slot * heads + h) * bytes);
      const char* field = acceptance.nonfinite_field(tokens.back() * heads + h, got);
      if (field && out.nonfinite++ == 0)
        out.first_nonfinite = "slot " + std::to_string(slot) + ", head " + std::to_string(h) + ": " + field;
    }
  }
  return out;
}

}  // namespace harness
