// SPDX-License-Identifier: Apache-2.0
// tq.encode: keys and values of N tokens into the slots of a TurboQuant cache.
//
// Keys, centroid presets, fp32 throughout: n = |k|; y = (k / (n + 1e-8)) @ Pi^T; code = number of midpoints m of
// adjacent centroids (fp32 average) with y >= m; the norm n as f16 (round to nearest even, saturating at 65504).
// Keys, fp8: a cast of each element, round to nearest even, saturating, NaN kept (e4b15: fp32 -> f16 RNE, |x| clamped
// to 1.75, then round half up on the magnitude).
// Values: s = (max - min) / (2^b - 1), at least 1e-8; code = trunc((v - min)/s + 0.5) clamped to [0, 2^b-1]; scale =
// f16(s), zero = f16(min). |min| or s beyond f16: the range is clamped to +-65504 before quantising, and reported.
// NaN or inf in a vector: norm NaN (keys), scale NaN (values), reported; its codes (and zero) are not judged.
// Tokens with the same slot: any one of them wins, whole.
// Bytes past the used slot length keep their content; code streams are padded with zero bits to whole bytes.
// A token whose slot is outside [0, blocks*S) is skipped; other slots of the cache keep their content.
// Exact against float64: a key code may differ only where y lies within 4 ulp (fp32) of a midpoint, a value code
// within 4 ulp of a rounding point; norm, scale and zero within 1 f16 ulp.
#pragma once

#include "tq/slot.h"

namespace tq::encode {

inline constexpr TensorSpec kTensors[] = {
    {"key", Role::input, kFloat, "N,Hk,D", "keys"},
    {"value", Role::input, kFloat, "N,Hk,D", "values"},
    {"slot_mapping", Role::input, kIndex, "N", "slot of each token; outside [0, blocks*S): skipped"},
    {"kv_cache", Role::in_place, dtypes(TK_U8), "blocks,S,Hk,slot", "the cache, changed in place; any strides"},
    {"Pi", Role::optional_input, dtypes(TK_F32), "", "[D,D] orthogonal; not needed for fp8 keys"},
    {"PiT", Role::optional_input, dtypes(TK_F32), "", "[D,D] its transpose"},
    {"centroids", Role::optional_input, dtypes(TK_F32), "", "[2^mse_bits] ascending; not needed for fp8 keys"},
};
inline constexpr ScalarSpec kScalars[] = {kKeyFp8, kMseBits, kKeyPackedSize, kValueBits, kNormCorrection, kFp8Flavour};

inline void check(const Args& a) {
  const TensorView key = a.tensor("key");
  require_positive(a, "key", 1, 2);
  require_positive(a, "kv_cache", 0, 1);
  check_codebook(a, slot_layout(a, key.size(2)), true);
}

inline std::vector<OutputSpec> outputs(const Args&) { return {}; }

inline constexpr Contract contract{"tq.encode", "keys and values into the slots of a TurboQuant cache", kTensors,
                                   kScalars, check, outputs};

}  // namespace tq::encode
