// SPDX-License-Identifier: Apache-2.0
// Queries of a fast decode with little work: a block rotates those of its own KV head, while its
// first copies are under way. The form is that of decode_queries.h: a power of two, two f16, as B
// fragments in shared memory.
#pragma once

#include "tq/decode_few_plan.h"
#include "tq/decode_queries.h"

namespace tq {

struct alignas(8) FourHalves {
  uint32_t pairs[2];
};

// A wave makes kOwn dimensions of 4 heads at a time: lanes have 4 elements j of all sums, and then
// a sum of their own each. Its rows of Pi come through shared memory.
template <int kKeyBits, int kDim, int kColumns>
class FewQueries {
  static constexpr int kOwn = 8, kHeadsAtOnce = 4;
  static constexpr int kRegisters = kColumns == 4 ? 2 : 4;
  static_assert(kDim == 4 * device::kWave, "a lane has 4 elements of a query");

 public:
  static constexpr int kRowsBytes = kOwn * kDim * 4;

  // `rows`: room of this wave; `first_head`: of the unit's `heads` query heads. Starts the loads
  // that come first; nothing waits for them here.
  DEVICE_FUNCTION FewQueries(const FewParams& p, uint8_t* rows, int row, int first_head, int heads)
      : p_(p), rows_(rows), heads_(heads) {
    from_ = p.query + 4 * device::lane() + int64_t{row} * p.query_row +
            int64_t{first_head} * p.query_head;
    copy_rows(device::wave() * kOwn);
    load_queries(0);
  }
  // Writes all into `fragments` and `gains`. The copies that have been started have arrived.
  DEVICE_FUNCTION void finish(uint8_t* fragments, float* gains) {
    DEVICE_ROLLED
    for (int output = device::wave() * kOwn;;) {
      DEVICE_ROLLED
      for (int first = 0; first < kColumns; first += kHeadsAtOnce) {
        if (first > 0) load_queries(first);
        rotate(first, output, fragments, gains);
      }
      output += device::waves() * kOwn;
      if (output >= kDim) break;
      device::sync_wave();
      copy_rows(output);
      device::copy_async_wait<0>();
      device::sync_wave();
      load_queries(0);
    }
  }

 private:
  DEVICE_FUNCTION void copy_rows(int first) const {
    if (p_.rotate) {
      const float* const from = p_.pi + int64_t{first} * p_.pi_row + 4 * device::lane();
      const SharedAddress to = device::shared_address(rows_ + 16 * device::lane());
      DEVICE_UNROLL
      for (int o = 0; o < kOwn; ++o)
        device::copy_async16_at<0>(to + static_cast<uint32_t>(o * kDim * 4),
                                   from + int64_t{o} * p_.pi_row);
    }
    device::copy_async_commit();
  }
  // Elements 4 * lane and on of 4 heads.
  DEVICE_FUNCTION void load_queries(int first) {
    DEVICE_UNROLL
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      own_[h] = FourHalves{};
      if (first + h < heads_)
        own_[h] = *reinterpret_cast<const FourHalves*>(from_ + int64_t{first + h} * p_.query_head);
    }
  }
  // Of columns `first` and the next three: dimensions first_output ... + kOwn - 1 into shared
  // memory, and what their scores are multiplied by into `gains`.
  DEVICE_FUNCTION void rotate(int first, int first_output, uint8_t* fragments, float* gains) const {
    const int lane = device::lane();
    float x[kHeadsAtOnce][4], largest[kHeadsAtOnce];
    const auto convert = [&](auto type) {
      using T = decltype(type);
      DEVICE_UNROLL
      for (int h = 0; h < kHeadsAtOnce; ++h) DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        x[h][2 * e] = device::low_half<T>(own_[h].pairs[e]);
        x[h][2 * e + 1] = device::high_half<T>(own_[h].pairs[e]);
      }
    };
    if (p_.dtype == TK_F16)
      convert(device::f16());
    else
      convert(device::bf16());
    // The largest of head lane % 4.
    DEVICE_UNROLL
    for (int h = 0; h < kHeadsAtOnce; ++h)
      largest[h] = device::max(device::max(device::abs(x[h][0]), device::abs(x[h][1])),
                               device::max(device::abs(x[h][2]), device::abs(x[h][3])));
    DEVICE_UNROLL
    for (int mask = 1; mask < kHeadsAtOnce; mask *= 2) {
      const bool upper = (lane & mask) != 0;
      DEVICE_UNROLL
      for (int h = 0; h < kHeadsAtOnce; h += 2 * mask) {
        const float away = upper ? largest[h] : largest[h + mask];
        largest[h] =
            device::max(upper ? largest[h + mask] : largest[h], device::shuffle_xor(away, mask));
      }
    }
    DEVICE_UNROLL
    for (int mask = kHeadsAtOnce; mask < device::kWave; mask *= 2)
      largest[0] = device::max(largest[0], device::shuffle_xor(largest[0], mask));
    float back;
    const float power = power_to_middle(largest[0], back);
    if (first_output == 0 && lane < kHeadsAtOnce) gains[first + lane] = p_.scale * back;
    // Sum i = kHeadsAtOnce * output + head is lane i's.
    float y = 0;
    if (p_.rotate) {
      float sums[kOwn * kHeadsAtOnce];
      DEVICE_UNROLL
      for (int o = 0; o < kOwn; ++o) {
        const Four row = device::load16<Four>(rows_ + o * kDim * 4 + 16 * device::lane());
        const float(&w)[4] = row.x;
        DEVICE_UNROLL
        for (int h = 0; h < kHeadsAtOnce; ++h)
          sums[o * kHeadsAtOnce + h] =
              device::fma(x[h][3], w[3],
                          device::fma(x[h][2], w[2], device::fma(x[h][1], w[1], x[h][0] * w[0])));
      }
      scatter<device::kWave / 2>(sums);
      y = sums[0];
    } else {  // lane i has elements 4 i ...: sum i is an element of lane first_output / 4 + i / 16
      DEVICE_UNROLL
      for (int h = 0; h < kHeadsAtOnce; ++h) DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int output = lane / kHeadsAtOnce;
        const float from = device::shuffle(x[h][e], first_output / 4 + output / 4);
        if (lane % kHeadsAtOnce == h && output % 4 == e) y = from;
      }
    }
    const KeyPlace place = wave_key_place(kKeyBits, kDim, first_output + lane / kHeadsAtOnce);
    const int column = first + lane % kHeadsAtOnce;
    const float scaled = y * power;
    const uint32_t high = device::pack_halves<device::f16>(scaled, 0);
    const float rest = scaled - device::low_half<device::f16>(high);
    const uint32_t low = device::pack_halves<device::f16>(rest, 0);
    const auto put = [&](int col, int part, uint32_t half) {
      const int word = (place.pair / 2 * device::kWave + 4 * col + place.member) * kRegisters +
                       2 * part + place.pair % 2;
      reinterpret_cast<uint16_t*>(fragments)[2 * word + place.half] = static_cast<uint16_t>(half);
    };
    put(column, 0, high);
    kColumns == 4 ? put(column + 4, 0, low) : put(column, 1, low);
  }

  // Adds up the sums of all lanes; lane i is left with sum i in sums[0].
  template <int kMask, int kSums>
  DEVICE_FUNCTION static void scatter(float (&sums)[kSums]) {
    const bool upper = (device::lane() & kMask) != 0;
    DEVICE_UNROLL
    for (int i = 0; i < kMask; ++i) {
      const float away = upper ? sums[i] : sums[i + kMask];
      sums[i] = (upper ? sums[i + kMask] : sums[i]) + device::shuffle_xor(away, kMask);
    }
    if constexpr (kMask > 1) scatter<kMask / 2>(sums);
  }

  const FewParams& p_;
  uint8_t* const rows_;
  const uint16_t* from_;
  int heads_;
  FourHalves own_[kHeadsAtOnce];
};

}  // namespace tq
