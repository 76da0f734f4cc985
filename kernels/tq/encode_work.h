// SPDX-License-Identifier: Apache-2.0
// What the waves of encode_sm_80.cu, which alone includes this, share: their parameters and the
// vectors that a block takes.
#pragma once

#include <algorithm>
#include <string>

#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/code_bins.h"
#include "tq/last_writer.h"
#include "tq/slot_stage.h"

namespace tq::encode::sm_80 {

inline constexpr int kMostVectors = 512;  // of a block
static_assert(kMostVectors + 2 <= kWriterTokens);
// Threads of a block for vectors of kDim elements.
template <class T, int kDim>
inline constexpr int kThreads = kDim * sizeof(T) > 256 ? 256 : 512;
inline constexpr int kMostRounds = kMostVectors / (256 / device::kWave * 8);  // of a wave
// Any Pi has a place in shared memory.
template <class T, int kDim>
inline constexpr bool kHasMatrix = !std::is_same_v<T, float> && kDim <= 128;
inline constexpr float kWhole =
    8388608;  // 2^23: adding it rounds to a whole number, in the low bits

// Keys or values; strides in elements, below 2^31: a multiplication is one instruction then.
struct Rows {
  const void* data;
  int of_token, of_head;
  DEVICE_FUNCTION int64_t offset(int token, int head) const {
    return int64_t{token} * of_token + int64_t{head} * of_head;
  }
};

struct Params {
  Source s;
  Rows key, value;
  StageFormat stage;
  int stage_bytes;   // of a wave
  int matrix_bytes;  // room in shared memory for a Pi that is no Hadamard matrix; 0: none
  int work;          // vectors of a block, whole pieces
  int vectors;       // N * Hk
  int heads, tokens;
  int step_tokens, step_heads;  // from a piece of a wave to its next one
  bool words;                   // fields of the stage are aligned to 4 bytes
  float value_levels, value_levels_inverse;
  uint32_t value_radix;
  uint32_t value_wholes;  // exponents of the whole numbers, added up in packing
};

struct Place {
  int token, head;
};
DEVICE_FUNCTION Place place_of(const Params& p, int vector) {
  if (vector >= p.vectors) vector = p.vectors - 1;
  const int token =
      static_cast<int>(static_cast<uint32_t>(vector) / static_cast<uint32_t>(p.heads));
  return {token, vector - token * p.heads};
}

// Vectors [first, last) of a block, and the first one's token.
struct Share {
  int first, last, token;
};
DEVICE_FUNCTION Share share_of_block(const Params& p) {
  const int first = device::block_x() * p.work;
  return {first, device::min(p.vectors - first, p.work) + first, place_of(p, first).token};
}

// The slot of a token of the block in the cache, kMasked: not to be written.
DEVICE_FUNCTION int64_t find_target(const Params& p, const WriterTables& writer, const Share& share,
                                    int token, int head) {
  const int64_t target = writer.target[token - share.token];
  return target == kMasked ? kMasked : target + head * p.s.cache.stride[2];
}

// 8 elements.
struct Halves8 {
  uint32_t pair[4];
};
struct Floats4 {
  float x[4];
};
struct Floats8 {
  Floats4 four[2];
};
template <class T>
using Piece = std::conditional_t<std::is_same_v<T, float>, Floats8, Halves8>;
DEVICE_FUNCTION void load_piece(const void* from, Halves8& x) {
  x = device::bit_cast<Halves8>(device::load_once16(from));
}
// Through the L1: both loads of a lane touch the same sectors.
DEVICE_FUNCTION void load_piece(const float* from, Floats8& x) {
  x.four[0] = device::load16<Floats4>(from);
  x.four[1] = device::load16<Floats4>(from + 4);
}
template <class T>
DEVICE_FUNCTION float element_of(const Halves8& x, int e) {
  return e % 2 ? device::high_half<T>(x.pair[e / 2]) : device::low_half<T>(x.pair[e / 2]);
}
template <class T>
DEVICE_FUNCTION float element_of(const Floats8& x, int e) {
  return x.four[e / 4].x[e % 4];
}

}  // namespace tq::encode::sm_80
