// SPDX-License-Identifier: Apache-2.0
// What the kernels of attend_sm_80.cu do with a tile of 16 tokens: queries as fragments, scores,
// weights.
#pragma once

#include "qsa/attend_gather.h"

namespace qsa {
namespace {

// A block's row, KV head and split of the tokens.
struct Part {
  int row, kv_head, split;
  int unit;  // of rows and KV heads

  DEVICE_FUNCTION explicit Part(const Plan& plan) {
    const int block = device::block_x();
    unit = int(plan.by_splits(uint32_t(block)));
    split = block - unit * plan.splits;
    if (plan.heads_apart) {
      kv_head = int(plan.by_rows(uint32_t(unit)));
      row = unit - kv_head * plan.rows;
      unit = row * plan.kv_heads + kv_head;
    } else {
      row = int(plan.by_kv_heads(uint32_t(unit)));
      kv_head = unit - row * plan.kv_heads;
    }
  }
};

// The inner dimension of a product may be permuted. A lane's chunk 4 j + member gives it the
// dimensions of two instructions, of keys and of queries alike. The queries' chunks of heads g and
// g + 8 are interleaved, such that a lane loads a fragment as it is.
template <int kRow, int kThreads, int kHalves>
struct Queries {
  static constexpr int kPairs = 8 * kRow, kOfThread = (kPairs + kThreads - 1) / kThreads;
  Chunk of_head[kOfThread][2];

  DEVICE_FUNCTION void load(const Plan& plan, int row, int first_head) {
    const Chunk* const query = plan.queries + row * plan.query_row + first_head * plan.query_head;
    DEVICE_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const int pair = device::thread() + i * kThreads;
      DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int head = pair / kRow + half * 8;
        of_head[i][half] = Chunk{};
        if (half < kHalves && head < plan.group && (kPairs % kThreads == 0 || pair < kPairs))
          of_head[i][half] = device::load16<Chunk>(query + head * plan.query_head + pair % kRow);
      }
    }
  }
  DEVICE_FUNCTION void store(Chunk* queries) const {
    DEVICE_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const int pair = device::thread() + i * kThreads, chunk = pair % kRow;
      const Chunk high = of_head[i][0], low = of_head[i][1];
      Chunk* const to = queries + chunk / 4 * 2 * device::kWave + pair / kRow * 4 + chunk % 4;
      if (kPairs % kThreads == 0 || pair < kPairs) {
        to[0] = {high.x[0], low.x[0], high.x[1], low.x[1]};
        to[device::kWave] = {high.x[2], low.x[2], high.x[3], low.x[3]};
      }
    }
  }
};

// Of eight tokens each; two sums, so that they wait less.
template <class T, int kRow>
DEVICE_FUNCTION void multiply_keys(float (&dot)[2][2][4], const Chunk* queries, const Chunk* key) {
  const int lane = device::lane(), group = lane / 4, member = lane % 4;
  const Chunk* of_keys[2];  // of even steps and of odd ones
  DEVICE_UNROLL
  for (int j = 0; j < 2; ++j) of_keys[j] = key + group * kRow + ((4 * j + member) ^ swizzle(group));
  DEVICE_UNROLL
  for (int j = 0; j < kRow / 4; ++j) {
    const Chunk first_half = queries[2 * j * device::kWave + lane];
    const Chunk second_half = queries[(2 * j + 1) * device::kWave + lane];
    DEVICE_UNROLL
    for (int octet = 0; octet < 2; ++octet) {
      const Chunk k = of_keys[j % 2][j / 2 * 8 + octet * 8 * kRow];
      device::multiply_16x8x16<T>(dot[octet][0], first_half.x, {k.x[0], k.x[1]});
      device::multiply_16x8x16<T>(dot[octet][1], second_half.x, {k.x[2], k.x[3]});
    }
  }
}

// This lane's scores, by half of the heads, octet of the tokens and neighbour. A score that is not
// finite makes the head NaN; -inf would silently drop the token.
template <int kHalves>
struct Scores {
  float of[kHalves][2][2], most[kHalves];

  DEVICE_FUNCTION Scores(const float (&dot)[2][2][4], uint32_t live, float scale) {
    const int member = device::lane() % 4;
    DEVICE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      most[half] = -device::infinity();
      DEVICE_UNROLL
      for (int octet = 0; octet < 2; ++octet) {
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float sum = dot[octet][0][2 * half + e] + dot[octet][1][2 * half + e];
          const bool finite = device::abs(sum) < device::infinity();
          const bool masked = !(live >> (octet * 8 + 2 * member + e) & 1);
          const float score = masked ? -device::infinity() : finite ? sum * scale : device::nan();
          of[half][octet][e] = score;
          most[half] = device::max(most[half], score);
        }
      }
    }
  }
  // Over the lanes of a head.
  DEVICE_FUNCTION void share_most(int half) {
    most[half] = device::max(most[half], device::shuffle_xor(most[half], 1));
    most[half] = device::max(most[half], device::shuffle_xor(most[half], 2));
  }
  // The weights as P V wants them; their sum is taken before they are rounded.
  template <class T>
  DEVICE_FUNCTION void weigh(uint32_t (&weights)[4], const float (&top)[kHalves],
                             float (&total)[kHalves]) {
    weights[1] = weights[3] = 0;
    DEVICE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      DEVICE_UNROLL
      for (int octet = 0; octet < 2; ++octet) {
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& w = of[half][octet][e];
          w = w == -device::infinity() ? 0.0f : device::exp2_fast(w - top[half]);
          total[half] += w;
        }
        weights[octet * 2 + half] = device::pack_halves<T>(of[half][octet][0], of[half][octet][1]);
      }
    }
  }
};

}  // namespace
}  // namespace qsa
