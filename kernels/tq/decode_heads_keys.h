// SPDX-License-Identifier: Apache-2.0
// Scores of a fast decode of 256 dimensions with 3-bit or fp8 keys (decode_heads.h).
//
// Centroid keys are bytes: 16 bits in fixed point, each half looked up in two registers of 8 bytes.
// With queries of three bytes the sums are exact integers; only the product of the low bytes is
// left out. fp8 keys and queries that are not rotated are f16 as they are.
#pragma once

#include "tq/decode_heads_queries.h"
#include "tq/decode_plan.h"

namespace tq {

// The centroids in fixed point, as two bytes each of 8 codes; `power` is what they were multiplied
// by, NaN where they are not finite.
struct ByteTable {
  uint32_t high[2], low[2];
  float power;

  DEVICE_FUNCTION void fill(const Codebook& book) {
    float c[8], largest = 0;
    DEVICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      c[i] = book.data[i * book.stride];
      largest = device::max(largest, device::abs(c[i]));
    }
    power = largest > 0 ? device::divide(32512, device::max(largest, 1e-30f)) : 1;
    high[0] = high[1] = low[0] = low[1] = 0;
    bool finite = true;
    DEVICE_UNROLL
    for (int i = 0; i < 8; ++i) {
      finite = finite && device::abs(c[i]) < device::infinity();
      const float x = device::max(-32512.0f, device::min(32512.0f, c[i] * power));
      const int v = static_cast<int>(device::floor(x + 0.5f));
      const auto l = static_cast<int8_t>(v);
      low[i / 4] |= (static_cast<uint32_t>(l) & 255) << (8 * (i % 4));
      high[i / 4] |= (static_cast<uint32_t>((v - l) >> 8) & 255) << (8 * (i % 4));
    }
    if (!finite) power = device::nan();
  }
};

// What the waves of a team know of the keys, in shared memory.
struct alignas(16) KeyNotes {
  uint32_t table[4];  // high and low bytes of the centroids
  float constant;     // a factor of all scores, or with norm correction what squares get more
};

// Where a lane's bytes lie in a tile.
struct HeadsPlaces {
  uint32_t key, codes, shift;  // of token `group`
  uint32_t pair;               // of token 2 * member
};

// Lanes get the scores of tokens 2 * member and the next, and of those 8 further, with head
// `group`: s. Of many heads, with head 8 + group % 4, too: t, groups 0-3 of the first two tokens,
// groups 4-7 of the others.
template <int kKeyBits, bool kMany>
class HeadsKeys {
  static_assert(kKeyBits == 3 || kKeyBits == 8);

 public:
  DEVICE_FUNCTION static void fill(const StreamParams& p, KeyNotes* to) {
    if constexpr (kKeyBits == 8) {
      to->constant = p.fp8_factor;
      return;
    }
    ByteTable table;
    table.fill(p.centroids);
    DEVICE_UNROLL
    for (int i = 0; i < 2; ++i) to->table[i] = table.high[i], to->table[2 + i] = table.low[i];
    // Dot products come in units of 2^8, which the gains undo (decode_queries.h).
    to->constant =
        p.norm_correction ? 1e-16f * table.power * table.power : device::divide(1, table.power);
  }
  // `queries`: of the heads, in shared memory; `notes`: filled.
  DEVICE_FUNCTION void begin(SharedAddress queries, const KeyNotes* notes) {
    notes_ = notes;
    queries_ = queries + static_cast<uint32_t>(device::lane() * (kKeyBits == 8 && !kMany ? 8 : 16));
  }
  // Without the gains of the heads.
  DEVICE_FUNCTION void scores(const StreamParams& p, SharedAddress tile, const HeadsPlaces& at,
                              float (&s)[2][2], float (&t)[2]) const {
    if constexpr (kKeyBits == 8)
      half_scores(p, tile, at, s, t);
    else
      byte_scores(p, tile, at, s, t);
  }

 private:
  DEVICE_FUNCTION void half_scores(const StreamParams& p, SharedAddress tile, const HeadsPlaces& at,
                                   float (&s)[2][2], float (&t)[2]) const {
    const SharedAddress codes = tile + at.codes;
    const auto eight = static_cast<uint32_t>(8 * p.tile.token_stride);
    float d[2][4] = {};
    uint32_t nans[2] = {};
    const auto multiply = [&](bool e4m3fn, bool nan_bytes) {
      DEVICE_UNROLL
      for (int k = 0; k < kHalfSteps; ++k) {
        uint32_t a[4] = {};
        if constexpr (kMany) {
          const device::Words4 q = device::load_shared16(queries_ + static_cast<uint32_t>(k * 512));
          a[0] = q.x[0], a[1] = q.x[1], a[2] = q.x[2], a[3] = q.x[3];
        } else {
          const device::Words2 q = device::load_shared8(queries_ + static_cast<uint32_t>(k * 256));
          a[0] = q.x[0], a[2] = q.x[1];
        }
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const uint32_t w =
              device::load_shared4(codes + static_cast<uint32_t>(e) * eight + 16 * k);
          const uint32_t b[2] = {fp8_pair(e4m3fn, w, 0), fp8_pair(e4m3fn, w, 1)};
          device::multiply_16x8x16<device::f16>(d[e], a, b);
          if (nan_bytes) nans[e] |= nan_bytes_e4m3fnuz(w) & 0x80808080u;
        }
      }
    };
    if (p.format.fp8 == TK_E4M3FN)
      multiply(true, false);
    else
      multiply(false, p.format.fp8 == TK_E4M3FNUZ);
    const bool low_group = device::lane() / 4 < 4;
    const float constant = notes_->constant;
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      s[0][j] = d[0][j] * constant, s[1][j] = d[1][j] * constant;
      t[j] = (low_group ? d[0][2 + j] : d[1][2 + j]) * constant;
    }
    if (device::any((nans[0] | nans[1]) != 0)) {  // fp8_pair() made numbers of e4m3fnuz's NaNs
      float factor[2];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        DEVICE_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) nans[e] |= device::shuffle_xor(nans[e], mask);
        factor[e] = nans[e] ? device::nan() : 1.0f;
      }
      of_tokens(factor, s, t);
    }
  }

  DEVICE_FUNCTION void byte_scores(const StreamParams& p, SharedAddress tile, const HeadsPlaces& at,
                                   float (&s)[2][2], float (&t)[2]) const {
    const int group = device::lane() / 4;
    const SharedAddress codes = tile + at.codes;
    const auto eight = static_cast<uint32_t>(8 * p.tile.token_stride);
    const device::Words4 table = device::load_shared16(device::shared_address(notes_->table));
    // Of heads 0-7: high and middle bytes of the queries with the keys' high bytes, with their low
    // ones. Low bytes with high ones: few heads, of even and of odd steps, in the rows where they
    // meet; many, in rows 8-15 of `more`, whose others are the last heads'.
    int32_t high[2][4] = {}, low[2][4] = {};
    int32_t more[2][4] = {}, more_low[2][4] = {}, last[2][4] = {};
    int32_t squares[2][3] = {};  // of the lane's part of a key: high, mixed, low
    DEVICE_UNROLL
    for (int u = 0; u < 2; ++u) {
      uint32_t w[2][3];
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const SharedAddress from = codes + static_cast<uint32_t>(e) * eight + 12 * u;
        uint32_t x = device::load_shared4(from);
        DEVICE_UNROLL
        for (int i = 0; i < 3; ++i) {  // the last reaches into the norm
          const uint32_t next = device::load_shared4(from + 4 * i + 4);
          w[e][i] = device::funnel_shift_right(x, next, at.shift);
          x = next;
        }
      }
      const SharedAddress queries = queries_ + static_cast<uint32_t>(u * (kHeadsPart / 2));
      const SharedAddress second =
          queries_ + kHeadsPart + static_cast<uint32_t>(u * (kHeadsPart / (kMany ? 2 : 4)));
      uint32_t r[4] = {};
      DEVICE_UNROLL
      for (int j = 0; j < 4; ++j) {
        uint32_t q[4], third[4] = {};
        load_rows(queries + j * 512, q);
        if (kMany || j % 2 == 0) load_rows(second + (kMany ? j : j / 2) * 512, r);
        if constexpr (kMany) load_rows(queries + 2 * kHeadsPart + j * 512, third);
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          uint32_t x = (w[e][0] & code_mask(j, 0)) | (w[e][1] & code_mask(j, 1)) |
                       (w[e][2] & code_mask(j, 2));
          if (j > 0) x = device::funnel_shift_right(x, x, static_cast<uint32_t>(32 - j));
          const uint32_t y = x >> 16;
          const uint32_t kh[2] = {device::look_up_bytes(table.x[0], table.x[1], x),
                                  device::look_up_bytes(table.x[0], table.x[1], y)};
          const uint32_t kl[2] = {device::look_up_bytes(table.x[2], table.x[3], x),
                                  device::look_up_bytes(table.x[2], table.x[3], y)};
          device::multiply_16x8x32(high[e], q, kh);
          device::multiply_16x8x32(low[e], q, kl);
          if constexpr (kMany) {
            device::multiply_16x8x32(more[e], r, kh);
            device::multiply_16x8x32(more_low[e], r, kl);
            device::multiply_16x8x32(last[e], third, kh);
          } else {
            device::multiply_16x8x32(j % 2 == 0 ? more[e] : last[e], r, kh);
          }
          DEVICE_UNROLL
          for (int i = 0; i < 2; ++i) {
            squares[e][0] = device::dot_bytes(kh[i], kh[i], squares[e][0]);
            squares[e][1] = device::dot_bytes(kh[i], kl[i], squares[e][1]);
            squares[e][2] = device::dot_bytes(kl[i], kl[i], squares[e][2]);
          }
        }
      }
    }
    // Dot products in units of 2^8.
    const auto sum = [](int hh, int hl, int ll) {
      return device::fma(65536.0f, static_cast<float>(hh), static_cast<float>(hl * 256 + ll));
    };
    const float constant = notes_->constant;
    float factor[2];  // of tokens group and group + 8
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      factor[e] = constant;
      if (p.norm_correction) {
        float square = sum(squares[e][0], 2 * squares[e][1], squares[e][2]);
        DEVICE_UNROLL
        for (int mask = 1; mask < 4; mask *= 2) square += device::shuffle_xor(square, mask);
        factor[e] = device::rsqrt_fast(square + constant);
      }
      factor[e] *= load_half(tile + at.key + static_cast<uint32_t>(e) * eight +
                             static_cast<uint32_t>(p.format.norm_at));
      DEVICE_UNROLL
      for (int j = 0; j < 2; ++j)
        s[e][j] = sum(high[e][j], high[e][2 + j] + low[e][j],
                      low[e][2 + j] + more[e][(kMany ? 2 : 0) + j] + (kMany ? 0 : last[e][2 + j]));
    }
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      t[j] = 0;
      if constexpr (kMany) {
        // Groups 0-3 have what high bytes make of all tokens, groups 4-7 what middle bytes do.
        const bool low_group = group < 4;
        const int of_high = device::shuffle_xor(low_group ? more[1][j] : more[0][j], 16);
        const int of_low = device::shuffle_xor(low_group ? more_low[1][j] : more_low[0][j], 16);
        if (low_group)
          t[j] = sum(more[0][j], of_high + more_low[0][j], last[0][j] + of_low);
        else
          t[j] = sum(of_high, more[1][j] + of_low, last[1][j] + more_low[1][j]);
      }
    }
    of_tokens(factor, s, t);
  }
  DEVICE_FUNCTION static void load_rows(SharedAddress from, uint32_t (&a)[4]) {
    const device::Words4 x = device::load_shared16(from);
    a[0] = x.x[0], a[1] = x.x[1], a[2] = x.x[2], a[3] = x.x[3];
  }

  // Multiplies scores by factors of their tokens; factor[e]: of token group + 8 e.
  DEVICE_FUNCTION void of_tokens(const float (&factor)[2], float (&s)[2][2], float (&t)[2]) const {
    const int lane = device::lane(), member = lane % 4;
    DEVICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int from = 4 * (2 * member + j) + member;
      const float f0 = device::shuffle(factor[0], from), f8 = device::shuffle(factor[1], from);
      s[0][j] *= f0, s[1][j] *= f8;
      t[j] *= lane / 4 < 4 ? f0 : f8;
    }
  }

  const KeyNotes* notes_;
  SharedAddress queries_;
};

}  // namespace tq
