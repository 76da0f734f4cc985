// SPDX-License-Identifier: Apache-2.0
// tq.encode on matrix instructions, for head sizes of 64 and 128 (fp8 keys: multiples of 16 up
// to 256) and slots aligned to 2 bytes.
//
// A wave encodes 32 (f32 keys: 16) vectors at a time, a vector being a head of a token: values by
// plain loads, keys straight from global memory into the fragments of the rotation, codes into a
// stage of slots in shared memory, and from there to the cache. After a block has prepared the
// rotation, its waves do not meet again and hide each other's loads.
//
// Codes are exact: an element that lies so near to a midpoint that the rounding of fp32 sums could
// decide it (one in some thousands) is rotated again in double, by the whole wave. encode.md has the
// bound. Vectors that are not finite, beyond f16 or whose squares leave fp32 take the definition's
// path (encode_item.h).
#include <string>

#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/code_bins.h"
#include "tq/last_writer.h"
#include "tq/slot_stage.h"
#include "tq/split_rotation.h"

namespace tq::encode {
namespace sm_80 {

inline constexpr int kWaves = 16, kThreads = kWaves * device::kWave;
inline constexpr int kMostWork = 1024;  // vectors of a block

struct Params {
  Source s;
  StageFormat stage;
  int stage_bytes;   // of a wave
  int work;          // pieces of work of a block
  int64_t vectors;   // N * Hk
};

// Vectors of a piece of work.
template <class T>
inline constexpr int kTiles = sizeof(T) == 2 ? 2 : 1;
template <class T>
inline constexpr int kVectors = 16 * kTiles<T>;

// Eight neighbouring elements.
template <class T>
struct Eight {
  uint32_t pair[4];
};
template <>
struct Eight<float> {
  float x[8];
};
template <class T>
DEVICE_FUNCTION Eight<T> load_eight(const Strided<3>& t, int64_t at) {
  Eight<T> out;
  const auto* from = reinterpret_cast<const Halves8*>(static_cast<const T*>(t.data) + at);
  DEVICE_UNROLL
  for (int h = 0; h < static_cast<int>(sizeof(T)) / 2; ++h) {
    const Halves8 words = from[h];
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        out.x[4 * h + i] = device::bit_cast<float>(words.pair[i]);
      else
        out.pair[i] = words.pair[i];
    }
  }
  return out;
}
template <class T>
DEVICE_FUNCTION float element(const Eight<T>& v, int e) {
  if constexpr (sizeof(T) == 4)
    return v.x[e];
  else
    return e % 2 ? device::high_half<T>(v.pair[e / 2]) : device::low_half<T>(v.pair[e / 2]);
}

// Codes that are whole numbers as floats, 2^23 added, into one word: the exponents add up to a
// constant.
DEVICE_FUNCTION uint32_t whole_bits(float x) { return device::bit_cast<uint32_t>(x); }
inline constexpr float kWhole = 8388608;  // 2^23
DEVICE_FUNCTION uint32_t packed_wholes(int bits) {
  return bits == 4 ? 0x4b000000u * 0x11111111u : 0x4b000000u * 0x249249u;
}

// Where a wave's vectors come from and go to: lane i knows vector i.
struct Places {
  int64_t key, value;  // offsets
  int64_t slot;        // in the cache, of the vector's own slot; kMasked: not written
};

template <class Writer>
DEVICE_FUNCTION Places find_places(const Params& p, const Writer& writer, int64_t first,
                                   int vectors) {
  int64_t vector = first + (device::lane() < vectors ? device::lane() : 0);
  const bool any = vector < p.vectors;
  if (!any) vector = p.vectors - 1;
  const int64_t token =
      static_cast<uint32_t>(vector) / static_cast<uint32_t>(p.s.heads);
  const int64_t head = vector - token * p.s.heads;
  Places places{token * p.s.key.stride[0] + head * p.s.key.stride[1],
                token * p.s.value.stride[0] + head * p.s.value.stride[1], kMasked};
  const int32_t slot = any ? writer.slot_to_write(p.s, token) : kNoSlot;
  if (slot >= 0) {
    const uint32_t page = static_cast<uint32_t>(p.s.cache.page);
    const uint32_t block = static_cast<uint32_t>(slot) / page;
    places.slot = slot_offset(p.s.cache, block, slot - int64_t{block} * page, head);
  }
  return places;
}

// Values, Lanes lanes a vector. Bit v of the result: vector v takes the definition's path; it is
// right in the lanes of that vector.
template <class T, int Lanes>
DEVICE_FUNCTION uint32_t encode_values(const Params& p, const Places& places, int vectors,
                                   uint8_t* stage) {
  constexpr int kSide = device::kWave / Lanes;  // vectors side by side
  constexpr int kBatch = sizeof(T) == 2 ? 4 : 2;
  const SlotFormat& f = p.s.format;
  const int group = device::lane() % Lanes, side = device::lane() / Lanes;
  const bool active = group * kGroup < f.head_dim;
  const float levels = static_cast<float>((1 << f.value_bits) - 1);
  const uint32_t radix = 1u << f.value_bits, wholes = packed_wholes(f.value_bits);
  uint32_t hard = 0;
  for (int v = 0; v < vectors; v += kSide * kBatch) {
    Eight<T> x[kBatch];
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = device::shuffle(places.value, v + i * kSide + side);
      x[i] = load_eight<T>(p.s.value, at + (active ? group * kGroup : 0));
    }
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      float low = element(x[i], 0), high = low, odd = low * 0;  // NaN where one is not finite
      DEVICE_UNROLL
      for (int e = 1; e < kGroup; ++e) {
        low = device::min(low, element(x[i], e));
        high = device::max(high, element(x[i], e));
        odd = device::fma(element(x[i], e), 0.0f, odd);
      }
      DEVICE_UNROLL
      for (int mask = Lanes / 2; mask > 0; mask /= 2) {
        low = device::min(low, device::shuffle_xor(low, mask));
        high = device::max(high, device::shuffle_xor(high, mask));
        odd += device::shuffle_xor(odd, mask);
      }
      const float range = high - low, scale = range * device::divide(1.0f, levels);
      const bool flat = !(scale > 1e-8f);
      const float steps = flat ? 1e8f : device::divide(levels, range);
      uint32_t word = 0;
      DEVICE_UNROLL
      for (int e = kGroup - 1; e >= 0; --e)
        word = word * radix + whole_bits(device::fma(element(x[i], e) - low, steps, kWhole));
      uint8_t* slot = stage + (v + i * kSide + side) * p.stage.used;
      stage_codes(slot, f.value_at, f.value_bits, group, word - wholes, active);
      if (group == 0) {
        stage_half(slot, f.scale_at, flat ? 1e-8f : scale);
        stage_half(slot, f.zero_at, low);
      }
      if (!(odd == 0 && device::max(device::abs(low), scale) < kHalfOverflows))
        hard |= 1u << (v + i * kSide + side);
    }
  }
  return hard;
}
template <class T, int Lanes>
DEVICE_FUNCTION void settle_values(const Params& p, const Places& places, uint32_t hard,
                                   uint8_t* stage) {
  if (!device::any(hard != 0)) return;
  device::sync_wave();
  for (int v = 0; v < kVectors<T>; ++v) {
    const int64_t at = device::shuffle(places.value, v);
    if (!(device::shuffle(hard, v % (device::kWave / Lanes) * Lanes) >> v & 1)) continue;
    if (device::lane() * kGroup < p.s.format.head_dim)
      encode_value(p.s, Slot{stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
}

// The code of one element in double, by a wave.
DEVICE_FUNCTION uint32_t exact_code(const Source& s, const CodeBins& bins, int64_t key, int dim) {
  double y = 0, squares = 0;
  for (int j = device::lane(); j < s.format.head_dim; j += device::kWave) {
    const double x = load_float(s.key.data, s.key.dtype, key + j);
    y += x * static_cast<double>(s.pi.data[dim * s.pi.stride[0] + j]);
    squares += x * x;
  }
  y = device::wave_sum(y);
  squares = device::wave_sum(squares);
  const double norm = square_root(squares) + 1e-8;
  const bool reached = device::lane() < bins.midpoints &&
                       y >= static_cast<double>(bins.midpoint[device::lane() % kMostMidpoints]) * norm;
  return static_cast<uint32_t>(device::popcount(device::ballot(reached)));
}

// Keys of a wave's vectors as the matrix instructions take them.
template <class T, int D>
struct Keys {
  static constexpr int kRows = 2 * kTiles<T>;  // of a lane: group + 8 i
  Eight<T> x[kRows][D / kSpan];
};
template <class T, int D>
DEVICE_FUNCTION void load_keys(const Params& p, int64_t places_key, Keys<T, D>& keys) {
  DEVICE_UNROLL
  for (int i = 0; i < Keys<T, D>::kRows; ++i) {
    const int64_t at = device::shuffle(places_key, device::lane() / 4 + 8 * i);
    DEVICE_UNROLL
    for (int span = 0; span < D / kSpan; ++span)
      keys.x[i][span] = load_eight<T>(p.s.key, at + span * kSpan + device::lane() % 4 * kGroup);
  }
}

// Per row of a lane, the same in the four lanes of a row.
template <int Rows>
struct RowScales {
  float to_f16[Rows];  // a power of two
  float unit[Rows];    // of sums of products, to elements of the rotated unit vector
  uint32_t watched;    // bit i * 8 + e: row i's elements may lie near a midpoint
  uint32_t hard;       // bit i: row i takes the definition's path
};

// Squares, norms and scales of rows; norms go to the stage.
template <class T, int D>
DEVICE_FUNCTION auto scale_rows(const Params& p, const Keys<T, D>& keys, float unit,
                                uint8_t* stage) {
  constexpr int kRows = Keys<T, D>::kRows;
  RowScales<kRows> out{};
  DEVICE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float squares = 0;
    uint32_t bits = 0;
    DEVICE_UNROLL
    for (int span = 0; span < D / kSpan; ++span) {
      float part = 0;
      DEVICE_UNROLL
      for (int e = 0; e < kGroup; ++e) {
        const float x = element(keys.x[i][span], e);
        part = device::fma(x, x, part);
        if constexpr (!std::is_same_v<T, device::f16>)
          bits |= device::bit_cast<uint32_t>(x) & 0x7fffffffu;
      }
      squares += part;
    }
    DEVICE_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) {
      squares += device::shuffle_xor(squares, mask);
      if constexpr (!std::is_same_v<T, device::f16>) bits |= device::shuffle_xor(bits, mask);
    }
    const bool zero = squares == 0 && bits == 0;
    const bool hard = !zero && !(squares > 0x1p-100f && squares < 0x1p100f);
    const float norm = device::sqrt(squares);
    out.hard |= static_cast<uint32_t>(hard) << i;
    if (!zero && !hard) out.watched |= 0xffu << (8 * i);
    out.to_f16[i] = 1;
    if constexpr (!std::is_same_v<T, device::f16>)  // elements below 2^9 and few denormal ones
      if (!zero && !hard)
        out.to_f16[i] = device::bit_cast<float>(
            (254u + 8) * 0x800000u - (device::bit_cast<uint32_t>(norm) & 0x7f800000u));
    out.unit[i] = device::divide(device::divide(unit, out.to_f16[i]), norm + 1e-8f);
    if (device::lane() % 4 == 0)
      stage_half(stage + (device::lane() / 4 + 8 * i) * p.stage.used, p.s.format.norm_at,
                 device::min(norm, kMostHalf));
  }
  return out;
}

// The high or low f16 part of scaled keys.
template <class T, int D>
DEVICE_FUNCTION Vectors<D, kTiles<T>> part_of(const Keys<T, D>& keys,
                                             const RowScales<Keys<T, D>::kRows>& scales,
                                             bool low_part) {
  Vectors<D, kTiles<T>> out;
  DEVICE_UNROLL
  for (int i = 0; i < Keys<T, D>::kRows; ++i)
    DEVICE_UNROLL
  for (int span = 0; span < D / kSpan; ++span)
    DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) {
    if constexpr (std::is_same_v<T, device::f16>) {
      out.pair[i][span][n] = keys.x[i][span].pair[n];
    } else {
      const float x0 = element(keys.x[i][span], 2 * n) * scales.to_f16[i];
      const float x1 = element(keys.x[i][span], 2 * n + 1) * scales.to_f16[i];
      const uint32_t high = device::pack_halves<device::f16>(x0, x1);
      out.pair[i][span][n] =
          low_part ? device::pack_halves<device::f16>(x0 - device::low_half<device::f16>(high),
                                                      x1 - device::high_half<device::f16>(high))
                   : high;
    }
  }
  return out;
}

// Elements of a wave that lie near a midpoint, in shared memory.
inline constexpr int kNearRoom = 63;
struct NearList {
  int count;  // may be beyond the room
  int element[kNearRoom];  // vector * 256 + dim
};

// Every key element that may be wrong, once the stage is written.
template <class T, int D>
DEVICE_FUNCTION void settle_keys(const Params& p, const CodeBins& bins, const Places& places,
                                 uint32_t hard, NearList* list, uint8_t* stage) {
  device::sync_wave();
  const int count = list->count;
  if (count == 0 && !device::any(hard != 0)) return;
  const bool full = count > kNearRoom;
  const int bits = p.s.format.key_bits;
  for (int n = 0; n < count && !full; ++n) {
    const int vector = list->element[n] / 256, dim = list->element[n] % 256;
    const uint32_t code = exact_code(p.s, bins, device::shuffle(places.key, vector), dim);
    if (device::lane() != 0) continue;
    const int shift = dim * bits % 8;
    uint8_t* at = stage + vector * p.stage.used + dim * bits / 8;
    const uint32_t mask = ((1u << bits) - 1) << shift, moved = code << shift;
    at[0] = static_cast<uint8_t>((at[0] & ~mask) | moved);
    if (shift + bits > 8) at[1] = static_cast<uint8_t>((at[1] & ~(mask >> 8)) | moved >> 8);
  }
  for (int v = 0; v < kVectors<T>; ++v) {
    const int64_t at = device::shuffle(places.key, v);
    if (!full && !(device::shuffle(hard, v % 8 * 4) >> (v / 8) & 1)) continue;
    if (device::lane() < D / kGroup)
      encode_centroid_key(p.s, Slot{stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
  device::sync_wave();
  if (device::lane() == 0) list->count = 0;
}

// Bit i of the result: row group + 8 i takes the definition's path.
template <class T, int D>
DEVICE_FUNCTION uint32_t encode_keys(const Params& p, const SplitPi<D>& pi, const CodeBins& bins,
                                     const Keys<T, D>& keys, NearList* list, uint8_t* stage) {
  constexpr int kRows = Keys<T, D>::kRows;
  const SlotFormat& f = p.s.format;
  const int group = device::lane() / 4, member = device::lane() % 4;
  const RowScales<kRows> scales = scale_rows<T, D>(p, keys, pi.unit, stage);
  const auto high = part_of<T, D>(keys, scales, false);
  const bool usable = bins.usable != 0;
  const float per_bin = bins.per_bin, first = bins.first, close = bins.close;
  for (int span = 0; span < D / kSpan; ++span) {
    float sum[kTiles<T>][4][4] = {};
    add_products<D>(sum, high, pi.high, span);
    if (pi.has_low) add_products<D>(sum, high, pi.low, span);
    if constexpr (sizeof(T) == 4) add_products<D>(sum, part_of<T, D>(keys, scales, true), pi.high, span);
    uint32_t word[kRows] = {};
    uint32_t near = 0;
    DEVICE_UNROLL
    for (int i = 0; i < kRows; ++i) {
      DEVICE_UNROLL
      for (int e = kGroup - 1; e >= 0; --e) {
        const float u = sum_of(sum, i, e) * scales.unit[i];
        const NearCode found = usable ? code_by_bin(bins, per_bin, first, u, close)
                                      : code_by_search(bins, u, close);
        word[i] = (word[i] << f.key_bits) + found.code;
        if (found.near) near |= 1u << (8 * i + e);
      }
    }
    near &= scales.watched;
    for (int b = 0; near >> b; ++b) {
      if (!(near >> b & 1)) continue;
      const int n = device::atomic_add(&list->count, 1);
      if (n < kNearRoom)
        list->element[n] = (group + b / 8 * 8) * 256 + span * kSpan + member * kGroup + b % 8;
    }
    DEVICE_UNROLL
    for (int i = 0; i < kRows; ++i)
      stage_codes(stage + (group + 8 * i) * p.stage.used, 0, f.key_bits, span * 4 + member, word[i],
                  true);
  }
  return scales.hard;
}

// The stage to the cache.
DEVICE_FUNCTION void write_slots(const Params& p, const Places& places, int64_t first, int vectors,
                                 const uint8_t* stage) {
  const int64_t left = p.vectors - first;
  const int count = left < vectors ? static_cast<int>(left) : vectors;
  const int heads = static_cast<int>(p.s.heads);
  int v = 0;
  int head = static_cast<int>(static_cast<uint32_t>(first) % static_cast<uint32_t>(heads));
  while (v < count) {
    const int joined = p.stage.heads_join ? device::min(heads - head, count - v) : 1;
    const int64_t slot = device::shuffle(places.slot, v);
    if (slot != kMasked)
      copy_run(p.stage, p.s.cache.data + slot, stage + v * p.stage.used, joined * p.stage.used);
    v += joined;
    head = 0;
  }
}

// The block's share: vectors [first, last), its tokens known to `writer`.
struct Share {
  int64_t first, last;
};
template <class T>
DEVICE_FUNCTION Share share_of_block(const Params& p) {
  const int64_t first = int64_t{device::block_x()} * p.work * kVectors<T>;
  const int64_t last = first + int64_t{p.work} * kVectors<T>;
  return {first, last < p.vectors ? last : p.vectors};
}
template <class Writer>
DEVICE_FUNCTION void collect_writers(const Params& p, Writer& writer, const Share& share) {
  writer.collect(p.s, share.first / p.s.heads, (share.last - 1) / p.s.heads + 1);
}

template <class T, int D>
DEVICE_KERNEL(kThreads) encode_centroids(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(int32_t, slots, kWriterEntries);
  DEVICE_SHARED(int32_t, tokens, kWriterEntries);
  DEVICE_SHARED(float, scratch, 32);
  DEVICE_SHARED(CodeBins, bins, 1);
  DEVICE_SHARED(NearList, lists, kWaves);
  auto* high = reinterpret_cast<Halves8*>(device::data(shared));
  auto* low = high + SplitPi<D>::kHalves8;
  uint8_t* stage = reinterpret_cast<uint8_t*>(low + SplitPi<D>::kHalves8) +
                   device::wave() * p.stage_bytes;
  NearList* list = device::data(lists) + device::wave();
  if (device::lane() == 0) list->count = 0;
  // An error of D / 8 sums (with both parts D / 4) of at most 1 each, rounded to 2^-24 or cut to
  // 2^-23, of the parts, and of the norm.
  if (device::wave() == 0)
    fill_bins(device::data(bins), p.s.centroids, 1 << p.s.format.key_bits, D * 0x1p-25f);
  const SplitPi<D> pi = split_rotation<D>(p.s.pi, high, low, scratch);
  const Share share = share_of_block<T>(p);
  LastWriter<decltype(slots), decltype(tokens)> writer{slots, tokens};
  collect_writers(p, writer, share);

  for (int64_t first = share.first + device::wave() * kVectors<T>; first < share.last;
       first += kWaves * kVectors<T>) {
    const Places places = find_places(p, writer, first, kVectors<T>);
    Keys<T, D> keys;
    load_keys<T, D>(p, places.key, keys);
    constexpr int kLanes = D <= 64 ? 8 : 16;
    const uint32_t hard_values = encode_values<T, kLanes>(p, places, kVectors<T>, stage);
    const uint32_t hard_keys = encode_keys<T, D>(p, pi, bins[0], keys, list, stage);
    settle_keys<T, D>(p, bins[0], places, hard_keys, list, stage);
    settle_values<T, kLanes>(p, places, hard_values, stage);
    device::sync_wave();
    write_slots(p, places, first, kVectors<T>, stage);
    device::sync_wave();
  }
}

// fp8 keys, eight a lane; vectors with NaN, and other flavours than e4m3fn, take the definition's
// path.
template <class T, int Lanes>
DEVICE_FUNCTION void encode_fp8_keys(const Params& p, const Places& places, uint8_t* stage) {
  constexpr int kSide = device::kWave / Lanes, kBatch = sizeof(T) == 2 ? 4 : 2;
  const int group = device::lane() % Lanes, side = device::lane() / Lanes;
  const bool active = group * kGroup < p.s.format.head_dim;
  uint32_t hard = 0;
  for (int v = 0; v < kVectors<T>; v += kSide * kBatch) {
    Eight<T> x[kBatch];
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = device::shuffle(places.key, v + i * kSide + side);
      x[i] = load_eight<T>(p.s.key, at + (active ? group * kGroup : 0));
    }
    DEVICE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int vector = v + i * kSide + side;
      DEVICE_UNROLL
      for (int e = 0; e < kGroup; e += 2) {
        const float a = element(x[i], e), b = element(x[i], e + 1);
        if (device::isnan(a + b)) hard |= 1u << vector;
        if (active)
          stage_u16(stage + vector * p.stage.used, group * kGroup + e, device::pack_e4m3fn(a, b));
      }
    }
  }
  if (p.s.format.fp8 != TK_E4M3FN) hard = ~0u;
  if (!device::any(hard != 0)) return;
  for (int v = 0; v < kVectors<T>; ++v) {  // a lane's own bytes: no barrier
    const int64_t at = device::shuffle(places.key, v);
    if (active && v % kSide == side && hard >> v & 1)
      encode_fp8_key(p.s, Slot{stage + v * p.stage.used, 1}, at, group, kGroup);
  }
}

template <class T, int Lanes>
DEVICE_KERNEL(kThreads) encode_fp8s(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(int32_t, slots, kWriterEntries);
  DEVICE_SHARED(int32_t, tokens, kWriterEntries);
  uint8_t* stage = device::data(shared) + device::wave() * p.stage_bytes;
  const Share share = share_of_block<T>(p);
  LastWriter<decltype(slots), decltype(tokens)> writer{slots, tokens};
  collect_writers(p, writer, share);
  for (int64_t first = share.first + device::wave() * kVectors<T>; first < share.last;
       first += kWaves * kVectors<T>) {
    const Places places = find_places(p, writer, first, kVectors<T>);
    const uint32_t hard = encode_values<T, Lanes>(p, places, kVectors<T>, stage);
    encode_fp8_keys<T, Lanes>(p, places, stage);
    settle_values<T, Lanes>(p, places, hard, stage);
    device::sync_wave();
    write_slots(p, places, first, kVectors<T>, stage);
    device::sync_wave();
  }
}

struct Encode {
  static constexpr const toolkit::Contract& contract = encode::contract;
  static constexpr const char* implementation = "sm_80";

  static void need(bool fact, const char* what) {
    if (!fact) throw device::Unsupported(std::string("because it needs ") + what);
  }
  static bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
  static void need_rows16(const Strided<3>& t, const char* what) {
    const int64_t elements = t.dtype == TK_F32 ? 4 : 8;
    need(aligned16(t.data) && t.stride[2] == 1 && t.stride[0] % elements == 0 &&
             t.stride[1] % elements == 0,
         what);
  }
  static uint64_t workspace(const toolkit::Args& a) {
    const Source s = source_of(a);
    const SlotFormat& f = s.format;
    if (f.fp8)
      need(f.head_dim % 16 == 0 && f.head_dim <= 256, "a head size that is a multiple of 16, up to 256");
    else
      need(f.head_dim == 64 || f.head_dim == 128, "a head size of 64 or 128");
    need(s.cache.stride[3] == 1 && reinterpret_cast<uintptr_t>(s.cache.data) % 2 == 0 &&
             s.cache.stride[0] % 2 == 0 && s.cache.stride[1] % 2 == 0 &&
             s.cache.stride[2] % 2 == 0 && f.value_at % 2 == 0,
         "slots and values aligned to 2 bytes");
    need(s.cache.blocks * s.cache.page <= INT32_MAX, "a cache of at most 2147483647 slots a head");
    need(s.tokens <= INT32_MAX / s.heads, "at most 2147483647 vectors");
    need(a.tensor("key").dtype() == a.tensor("value").dtype(), "keys and values of one dtype");
    need_rows16(s.key, "keys whose rows are contiguous and aligned to 16 bytes");
    need_rows16(s.value, "values whose rows are contiguous and aligned to 16 bytes");
    if (!f.fp8)
      need(aligned16(s.pi.data) && s.pi.stride[1] == 1 && s.pi.stride[0] % 4 == 0,
           "a Pi whose rows are contiguous and aligned to 16 bytes");
    return 0;
  }

  template <class T, class Kernel>
  static void start(Kernel kernel, Params p, int64_t fixed_bytes, void* stream) {
    p.stage = stage_format(p.s.cache, p.s.format, p.s.heads, kVectors<T>);
    p.stage_bytes = (kVectors<T> * p.stage.used + 15) / 16 * 16;
    p.vectors = p.s.tokens * p.s.heads;
    const int64_t work = (p.vectors + kVectors<T> - 1) / kVectors<T>;
    const int64_t share = (work + device::multiprocessors() - 1) / device::multiprocessors();
    p.work = static_cast<int>(std::min<int64_t>(share, kMostWork / kVectors<T>));
    device::launch(kernel, device::Grid{(work + p.work - 1) / p.work, 1, 1}, kThreads,
                   static_cast<size_t>(fixed_bytes + kWaves * p.stage_bytes), stream, p);
  }
  template <class T>
  static void start(const Params& p, void* stream) {
    const int dim = p.s.format.head_dim;
    if (p.s.format.fp8) {
      if (dim <= 64)
        start<T>(encode_fp8s<T, 8>, p, 0, stream);
      else if (dim <= 128)
        start<T>(encode_fp8s<T, 16>, p, 0, stream);
      else
        start<T>(encode_fp8s<T, 32>, p, 0, stream);
      return;
    }
    const int64_t rotation = int64_t{2} * 2 * dim * dim;
    if (dim == 64)
      start<T>(encode_centroids<T, 64>, p, rotation, stream);
    else
      start<T>(encode_centroids<T, 128>, p, rotation, stream);
  }
  static void run(const device::OpCall& call) {
    Params p{};
    const Source all = source_of(call.args);
    // In order, so that later tokens overwrite earlier ones.
    for (int64_t first = 0; first < all.tokens; first += kMostTokens) {
      p.s = all;
      p.s.tokens = std::min(kMostTokens, all.tokens - first);
      const auto skip = [&](auto& t) {
        t.data = static_cast<std::byte*>(t.data) +
                 first * t.stride[0] * static_cast<int64_t>(toolkit::bytes_of(t.dtype));
      };
      skip(p.s.key);
      skip(p.s.value);
      skip(p.s.slot_mapping);
      if (p.s.key.dtype == TK_F16)
        start<device::f16>(p, call.stream);
      else if (p.s.key.dtype == TK_BF16)
        start<device::bf16>(p, call.stream);
      else
        start<float>(p, call.stream);
    }
  }
};

DEVICE_OP(Encode)

}  // namespace sm_80
}  // namespace tq::encode
