// SPDX-License-Identifier: Apache-2.0
// The layout of a TurboQuant slot: one token of one KV head, in bytes.
//
//   [0, code bytes)                 key codes: fp8 bytes, or a little-endian bit stream of mse_bits per element
//   [code bytes, +2)                f16 key norm (absent for fp8 keys)
//   [key_packed_size, + value bytes) value codes: a little-endian bit stream of value_quant_bits per element
//   then f16 scale, f16 zero; then padding to an even size, or as much as the cache's last dimension has
// Slots are only 2-byte aligned; for odd code bytes even the f16 fields are not aligned: read bytes.
#pragma once

#include "toolkit/shape_rules.h"

namespace tq {

using namespace toolkit;

inline int64_t packed_bytes(int64_t elements, int64_t bits) { return (elements * bits + 7) / 8; }

struct SlotLayout {
  int64_t head_dim = 0;
  bool key_fp8 = false;
  int64_t key_bits = 0;    // of a centroid code; 8 for fp8 keys
  int64_t value_bits = 0;
  int64_t code_bytes = 0;  // key codes
  int64_t norm_at = -1;    // byte of the f16 norm; -1 for fp8 keys
  int64_t value_at = 0;    // byte of the first value code = key_packed_size
  int64_t scale_at = 0;    // byte of the f16 scale
  int64_t zero_at = 0;     // byte of the f16 zero
  int64_t used = 0;        // bytes that carry something
};

// Scalars that every op on a cache takes.
inline constexpr ScalarSpec kKeyFp8{"key_fp8", ScalarKind::boolean, "0", "1: keys are fp8 bytes, no rotation, no norm"};
inline constexpr ScalarSpec kMseBits{"mse_bits", ScalarKind::integer, "0", "bits of a key code, 3 or 4; ignored for fp8 keys"};
inline constexpr ScalarSpec kKeyPackedSize{"key_packed_size", ScalarKind::integer, nullptr, "byte of the first value code"};
inline constexpr ScalarSpec kValueBits{"value_quant_bits", ScalarKind::integer, nullptr, "bits of a value code, 3 or 4"};
inline constexpr ScalarSpec kNormCorrection{"norm_correction", ScalarKind::boolean, "0", "divide by the centroid vector's own norm"};
inline constexpr ScalarSpec kFp8Flavour{"fp8_flavour", ScalarKind::text, "e4m3fn", "e4m3fn, e4m3fnuz or e4b15; belongs to the data"};

// The layout that scalars and cache shape say, checked. `head_dim` is D.
inline SlotLayout slot_layout(const Args& a, int64_t head_dim) {
  SlotLayout s;
  s.head_dim = head_dim;
  s.key_fp8 = a.boolean("key_fp8");
  s.value_bits = a.integer("value_quant_bits");
  require(s.value_bits == 3 || s.value_bits == 4, a, "value_quant_bits", "3 or 4", std::to_string(s.value_bits));
  s.key_bits = s.key_fp8 ? 8 : a.integer("mse_bits");
  if (!s.key_fp8)
    require(s.key_bits == 3 || s.key_bits == 4, a, "mse_bits", "3 or 4 (or key_fp8 = 1)", std::to_string(s.key_bits));
  const TensorView cache = a.tensor("kv_cache");
  const int64_t slot = cache.size(3);  // nothing is beyond it: checked first, so that no sum below leaves 64 bits
  require(head_dim <= slot * 8, a, "kv_cache", "slots of D = " + std::to_string(head_dim) + " codes", got_shape(cache));
  s.code_bytes = packed_bytes(head_dim, s.key_bits);
  s.norm_at = s.key_fp8 ? -1 : s.code_bytes;
  s.value_at = a.integer("key_packed_size");
  const int64_t key_bytes = s.code_bytes + (s.key_fp8 ? 0 : 2);
  require(s.value_at >= key_bytes && s.value_at <= slot, a, "key_packed_size",
          std::to_string(key_bytes) + " (D = " + std::to_string(head_dim) + ") to " + std::to_string(slot) + " bytes",
          std::to_string(s.value_at));
  s.scale_at = s.value_at + packed_bytes(head_dim, s.value_bits);
  s.zero_at = s.scale_at + 2;
  s.used = s.zero_at + 2;
  require(slot >= s.used, a, "kv_cache", "slots of at least " + std::to_string(s.used) + " bytes",
          got_shape(cache));
  if (s.key_fp8) {
    const tk_dtype f = dtype_named(a.text("fp8_flavour"));
    require(f == TK_E4M3FN || f == TK_E4M3FNUZ || f == TK_E4B15, a, "fp8_flavour", "e4m3fn, e4m3fnuz or e4b15",
            std::string(a.text("fp8_flavour")));
  }
  return s;
}

inline tk_dtype fp8_flavour(const Args& a) { return dtype_named(a.text("fp8_flavour")); }

// Pi [D,D], centroids [2^bits] and, where present, PiT = transpose of Pi. Not looked at for fp8 keys.
inline void check_codebook(const Args& a, const SlotLayout& s, bool needs_rotation) {
  if (s.key_fp8) return;
  const TensorView c = a.tensor("centroids");
  require(c.rank() == 1 && c.size(0) == (int64_t{1} << s.key_bits), a, "centroids",
          "shape [" + std::to_string(1 << s.key_bits) + "] (2^mse_bits)", got_shape(c));
  if (!needs_rotation) return;
  const Shape square{s.head_dim, s.head_dim};
  const TensorView pi = a.tensor("Pi");
  require(pi.shape() == square, a, "Pi", "shape " + to_text(square), got_shape(pi));
  if (const TensorView t = a.find("PiT")) require(t.shape() == square, a, "PiT", "shape " + to_text(square), got_shape(t));
}

// Pi and PiT carry data that only the harness can read everywhere (a kernel sees device pointers): this is its check.
inline void check_transpose(const Args& a) {
  const TensorView pi = a.find("Pi"), t = a.find("PiT");
  if (!pi || !t || !pi.raw().data || !t.raw().data) return;
  for (int64_t i = 0; i < pi.size(0); ++i)
    for (int64_t j = 0; j < pi.size(1); ++j)
      require(pi.data<float>()[i * pi.stride(0) + j * pi.stride(1)] == t.data<float>()[j * t.stride(0) + i * t.stride(1)],
              a, "PiT", "the transpose of Pi", "another value at [" + std::to_string(j) + "," + std::to_string(i) + "]");
}

}  // namespace tq
