// SPDX-License-Identifier: Apache-2.0
// tq.dequant: a TurboQuant cache back to f16 keys (in rotated space) and values.
//
//   V = f16(f32(code*scale + zero));  K = f16(f32(norm * c[code] [/ sqrt(sum c^2 + 1e-16)])) or f16(fp8 key)
// each rounded twice in this order: bit-exact for values, fp8 keys (NaN bytes give NaN) and keys without norm
// correction; with it within 1 f16 ulp. A bad block id writes zeros, and so does a token beyond W*S.
#pragma once

#include "tq/slot.h"

namespace tq::dequant {

inline constexpr TensorSpec kTensors[] = {
    {"kv_cache", Role::input, dtypes(TK_U8), "blocks,S,Hk,slot", "the cache, any strides"},
    {"block_table", Role::input, kIndex, "B,W", "block id per S tokens; outside [0,blocks): zeros"},
    {"centroids", Role::optional_input, dtypes(TK_F32), "", "[2^mse_bits]; not needed for fp8 keys"},
    {"k", Role::output, dtypes(TK_F16), "B,Hk,tokens,D", "keys in rotated space"},
    {"v", Role::output, dtypes(TK_F16), "B,Hk,tokens,D", "values"},
};
inline constexpr ScalarSpec kHeadDim{"head_dim", ScalarKind::integer, "",
                                     "D; default: from key_packed_size (fp8: D, else (size-2)*8 div mse_bits)"};
inline constexpr ScalarSpec kTokens{"tokens", ScalarKind::integer, "", "tokens to write; default W*S"};
inline constexpr ScalarSpec kScalars[] = {kKeyFp8,         kMseBits,    kKeyPackedSize, kValueBits,
                                          kNormCorrection, kFp8Flavour, kTokens,        kHeadDim};

// D is not in the cache's shape: from head_dim, else from an output that is there, else from the packed key size.
inline int64_t head_dim(const Args& a) {
  if (a.given("head_dim")) return a.integer("head_dim");
  for (const char* name : {"k", "v"})
    if (const TensorView t = a.find(name); t && t.rank() == 4) return t.size(3);
  const int64_t size = a.integer("key_packed_size");
  if (a.boolean("key_fp8")) return size;
  const int64_t bits = a.integer("mse_bits");
  return bits > 0 ? (size - 2) * 8 / bits : 0;
}
inline int64_t tokens(const Args& a) {
  if (a.given("tokens")) return a.integer("tokens");
  return a.tensor("block_table").size(1) * a.tensor("kv_cache").size(1);
}

inline void check(const Args& a) {
  require_positive(a, "kv_cache", 0, 1, 2);
  require_positive(a, "block_table", 1);
  require_countable(a, "block_table", "kv_cache");
  const int64_t slot = a.tensor("kv_cache").size(3), packed = a.integer("key_packed_size");  // head_dim multiplies it
  require(packed >= 0 && packed <= slot, a, "key_packed_size", "0 to " + std::to_string(slot) + " bytes",
          std::to_string(packed));
  require(tokens(a) >= 0, a, "tokens", "an integer >= 0", std::to_string(tokens(a)));
  require(head_dim(a) > 0, a, "head_dim", "D > 0", std::to_string(head_dim(a)));
  check_codebook(a, slot_layout(a, head_dim(a)), false);
}

inline std::vector<OutputSpec> outputs(const Args& a) {
  const Shape s{a.tensor("block_table").size(0), a.tensor("kv_cache").size(2), tokens(a), head_dim(a)};
  return {{"k", TK_F16, s}, {"v", TK_F16, s}};
}

inline constexpr Contract contract{"tq.dequant", "a TurboQuant cache back to f16 keys (rotated space) and values",
                                   kTensors, kScalars, check, outputs};

}  // namespace tq::dequant
