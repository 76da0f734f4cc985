// SPDX-License-Identifier: Apache-2.0
// tq.encode of f16 and bf16 on matrix instructions, for head sizes of 64 and 128 (fp8 keys:
// multiples of 16 up to 128) and slots aligned to 2 bytes.
//
// A wave encodes 32 vectors at a time, a vector being a head of a token. Keys go straight from
// global memory into the fragments of the rotation; values, rotated keys and codes pass through
// shared memory, so that a lane has a vector of its own: no exchange between lanes for minimum,
// maximum or norm, and short loops (a wave that runs through unrolled code once waits for
// instructions more than for anything else). Once a block has prepared the rotation, its waves do
// not meet again.
//
// Codes are exact: an element that lies so near to a midpoint that the rounding of fp32 sums could
// decide it (one in some thousands) is rotated again in double, by the whole wave. Vectors that are
// not finite, beyond f16 or whose squares leave fp32 take the definition's path (encode_item.h).
#include <algorithm>
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

inline constexpr int kMostWaves = 8, kThreads = kMostWaves * device::kWave;
inline constexpr int kVectors = device::kWave;    // of a wave at a time: one a lane
inline constexpr int kMostWork = 512 / kVectors;  // of a block
static_assert(kMostWork * kVectors + 2 <= kWriterTokens);

// Shared memory of a wave, in bytes: a tile of values (fp8: of keys too), rotated keys, and the
// stage.
inline constexpr int kSumPitch = 36;  // floats; rows start in different banks
inline constexpr int kSumBytes = kVectors * kSumPitch * 4;

struct Params {
  Source s;
  StageFormat stage;
  int stage_bytes;
  int tile_pitch;    // bytes
  int work;          // pieces of 32 vectors of a block
  bool tiles_early;  // before the rotation is prepared
  int encoders;      // waves of a block that encode; the others only help to prepare
  int64_t vectors;   // N * Hk
};

struct Buffers {
  uint8_t* tile;
  float* sums;
  uint8_t* stage;
};

// Lane i knows vector i of a piece of work.
struct Sources {
  int64_t key, value;  // offsets
};
struct Place {
  int64_t token, head;
};
DEVICE_FUNCTION Place place_of(const Params& p, int64_t vector) {
  if (vector >= p.vectors) vector = p.vectors - 1;
  const int64_t token = static_cast<uint32_t>(vector) / static_cast<uint32_t>(p.s.heads);
  return {token, vector - token * p.s.heads};
}
DEVICE_FUNCTION Sources find_sources(const Params& p, int64_t first) {
  const Place at = place_of(p, first + device::lane());
  return {at.token * p.s.key.stride[0] + at.head * p.s.key.stride[1],
          at.token * p.s.value.stride[0] + at.head * p.s.value.stride[1]};
}
// The vector's slot in the cache, kMasked: not to be written.
template <class Writer>
DEVICE_FUNCTION int64_t find_target(const Params& p, const Writer& writer, int64_t first) {
  if (first + device::lane() >= p.vectors) return kMasked;
  const Place at = place_of(p, first + device::lane());
  const int32_t slot = writer.slot_to_write(p.s, at.token);
  if (slot < 0) return kMasked;
  const uint32_t page = static_cast<uint32_t>(p.s.cache.page);
  const uint32_t block = static_cast<uint32_t>(slot) / page;
  return slot_offset(p.s.cache, block, slot - int64_t{block} * page, at.head);
}

// Starts to copy 32 vectors to a tile, one commit.
template <class T>
DEVICE_FUNCTION void fetch_tile(const Params& p, const Strided<3>& from, int64_t source,
                                uint8_t* tile) {
  const int pieces = p.s.format.head_dim / 8;  // of 16 bytes, of a vector
  const int side = device::lane() / 16, piece = device::lane() % 16;
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; v += 2) {
    const int64_t at = device::shuffle(source, v + side) + piece * 8;
    if (piece < pieces)
      device::copy_async16(tile + (v + side) * p.tile_pitch + piece * 16,
                           static_cast<const T*>(from.data) + at, true);
  }
  device::copy_async_commit();
}

template <class T>
DEVICE_FUNCTION float half_of(const Halves8& h, int e) {
  return e % 2 ? device::high_half<T>(h.pair[e / 2]) : device::low_half<T>(h.pair[e / 2]);
}

inline constexpr float kWhole =
    8388608;  // 2^23: adding it rounds to a whole number, in the low bits

// This lane's value from the tile to the stage. False: it takes the definition's path.
template <class T>
DEVICE_FUNCTION bool encode_value_of_lane(const Params& p, const Buffers& b) {
  const SlotFormat& f = p.s.format;
  const auto* row = reinterpret_cast<const Halves8*>(b.tile + device::lane() * p.tile_pitch);
  uint8_t* slot = b.stage + device::lane() * p.stage.used;
  const int pieces = f.head_dim / 8;
  Halves8 least = device::load16<Halves8>(row), most = least;
  DEVICE_ROLLED
  for (int i = 1; i < pieces; ++i) {
    const Halves8 x = device::load16<Halves8>(row + i);
    DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      least.pair[n] = device::min_halves<T>(least.pair[n], x.pair[n]);
      most.pair[n] = device::max_halves<T>(most.pair[n], x.pair[n]);
    }
  }
  DEVICE_UNROLL
  for (int n = 2; n > 0; n /= 2) DEVICE_UNROLL
  for (int i = 0; i < n; ++i) {
    least.pair[i] = device::min_halves<T>(least.pair[i], least.pair[i + n]);
    most.pair[i] = device::max_halves<T>(most.pair[i], most.pair[i + n]);
  }
  const float low = device::min(half_of<T>(least, 0), half_of<T>(least, 1));
  const float high = device::max(half_of<T>(most, 0), half_of<T>(most, 1));
  // NaN and inf have reached the pairs, but min and max drop a NaN.
  const float all = device::abs(half_of<T>(least, 0)) + device::abs(half_of<T>(least, 1)) +
                    device::abs(half_of<T>(most, 0)) + device::abs(half_of<T>(most, 1));
  const float levels = static_cast<float>((1 << f.value_bits) - 1);
  const float range = high - low;
  const float scale = device::max(device::divide(range, levels), 1e-8f);
  const float steps = scale > 1e-8f ? device::divide(levels, range) : 1e8f;
  const uint32_t radix = 1u << f.value_bits;
  // Exponents of the whole numbers, added up in packing.
  const uint32_t wholes = 0x4b000000u * (f.value_bits == 4 ? 0x11111111u : 0x249249u);
  DEVICE_ROLLED
  for (int i = 0; i < pieces; ++i) {
    const Halves8 x = device::load16<Halves8>(row + i);
    uint32_t word = 0;
    DEVICE_UNROLL
    for (int e = kGroup - 1; e >= 0; --e)
      word = word * radix +
             device::bit_cast<uint32_t>(device::fma(half_of<T>(x, e) - low, steps, kWhole));
    stage_codes(slot, f.value_at + i * f.value_bits, f.value_bits, word - wholes);
  }
  stage_half(slot, f.scale_at, scale);
  stage_half(slot, f.zero_at, low);
  return all < device::infinity() && device::max(device::abs(low), scale) < kHalfOverflows;
}
// The wave settles the vectors of lanes that ask for it.
DEVICE_FUNCTION void settle_values(const Params& p, int64_t source, bool hard, const Buffers& b) {
  if (!device::any(hard)) return;
  device::sync_wave();
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = device::shuffle(source, v);
    if (device::shuffle(static_cast<int>(hard), v) && device::lane() * kGroup < p.s.format.head_dim)
      encode_value(p.s, Slot{b.stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
}

// The code of one element in double, by a wave.
DEVICE_FUNCTION uint32_t exact_code(const Source& s, const CodeBins& bins, int64_t key, int dim) {
  double y = 0, squares = 0;
  DEVICE_ROLLED
  for (int j = device::lane(); j < s.format.head_dim; j += device::kWave) {
    const double x = load_float(s.key.data, s.key.dtype, key + j);
    y += x * static_cast<double>(s.pi.data[dim * s.pi.stride[0] + j]);
    squares += x * x;
  }
  y = device::wave_sum(y);
  squares = device::wave_sum(squares);
  const double norm = square_root(squares) + 1e-8;
  const bool reached =
      device::lane() < bins.midpoints &&
      y >= static_cast<double>(bins.midpoint[device::lane() % kMostMidpoints]) * norm;
  return static_cast<uint32_t>(device::popcount(device::ballot(reached)));
}

// Elements of a wave that lie near a midpoint, in shared memory.
inline constexpr int kNearRoom = 63;
struct NearList {
  int count;               // may be beyond the room
  int element[kNearRoom];  // vector * 256 + dim
};

// What a lane needs to know of its key.
struct KeyScale {
  float unit;   // of sums of products, to elements of the rotated unit vector
  float close;  // of the bins; below 0: no element may be near
  bool hard;    // takes the definition's path
};

template <class T>
DEVICE_FUNCTION bool is_zero(const Params& p, int64_t source) {
  const auto* x = reinterpret_cast<const Halves8*>(static_cast<const T*>(p.s.key.data) + source);
  uint32_t bits = 0;
  DEVICE_ROLLED
  for (int i = 0; i < p.s.format.head_dim / 8; ++i)
    bits |= x[i].pair[0] | x[i].pair[1] | x[i].pair[2] | x[i].pair[3];
  return (bits & 0x7fff7fffu) == 0;
}

template <class T>
DEVICE_FUNCTION KeyScale scale_key(const Params& p, const Buffers& b, float squares, float unit,
                                   float close, int64_t source) {
  const float norm = device::sqrt(squares);
  stage_half(b.stage + device::lane() * p.stage.used, p.s.format.norm_at,
             device::min(norm, kMostHalf));
  KeyScale k{device::divide(unit, norm + 1e-8f), close,
             !(squares > 0x1p-100f && squares < 0x1p100f)};
  if (k.hard) {
    k.close = -1;
    k.hard = !is_zero<T>(p, source);
  }
  return k;
}

// 32 elements from `first` on of this lane's rotated key.
DEVICE_FUNCTION void encode_sums_of_lane(const Params& p, const CodeBins& bins, const Buffers& b,
                                         const KeyScale& k, int first, NearList* list) {
  const int bits = p.s.format.key_bits;
  const float slope = bins.slope * k.unit, offset = bins.offset;
  const bool usable = bins.usable != 0;
  const uint32_t radix = 1u << bits;
  DEVICE_ROLLED
  for (int part = 0; part < 4; ++part) {
    const auto* four =
        reinterpret_cast<const Floats4*>(b.sums + device::lane() * kSumPitch + part * kGroup);
    const Floats4 lower = device::load16<Floats4>(four), upper = device::load16<Floats4>(four + 1);
    uint32_t word = 0;
    float nearest = device::infinity();
    if (usable) {
      DEVICE_UNROLL
      for (int e = kGroup - 1; e >= 0; --e) {
        const float x = e < 4 ? lower.x[e] : upper.x[e - 4];
        const NearCode found = code_by_bin(bins.bin, slope, offset, x, k.unit);
        word = word * radix + found.code;
        nearest = device::min(nearest, found.distance);
      }
    }
    if (!usable || nearest < k.close) {
      word = 0;
      DEVICE_ROLLED
      for (int e = kGroup - 1; e >= 0; --e) {
        const float x = b.sums[device::lane() * kSumPitch + part * kGroup + e];
        const NearCode found = usable ? code_by_bin(bins.bin, slope, offset, x, k.unit)
                                      : code_by_search(bins, x * k.unit);
        word = word * radix + found.code;
        if (!(found.distance < k.close)) continue;
        const int n = device::atomic_add(&list->count, 1);
        if (n < kNearRoom) list->element[n] = device::lane() * 256 + first + part * kGroup + e;
      }
    }
    stage_codes(b.stage + device::lane() * p.stage.used, (first / kGroup + part) * bits, bits,
                word);
  }
}

template <class T, int D>
DEVICE_FUNCTION void load_keys(const Params& p, int64_t source, Vectors32<D>& x) {
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t at = device::shuffle(source, device::lane() / 4 + 8 * i);
    const auto* row = reinterpret_cast<const Halves8*>(static_cast<const T*>(p.s.key.data) + at);
    DEVICE_UNROLL
    for (int from = 0; from < D / 32; ++from)
      x.of[i][from] = device::load16<Halves8>(row + from * 4 + device::lane() % 4);
  }
}

DEVICE_FUNCTION void store_sums(const float (&sum)[2][4][4], float* sums) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  DEVICE_UNROLL
  for (int tile = 0; tile < 2; ++tile) DEVICE_UNROLL
  for (int n = 0; n < 4; ++n) DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    struct alignas(8) Two {
      float x[2];
    };
    *reinterpret_cast<Two*>(sums + (16 * tile + 8 * half + group) * kSumPitch + 8 * n +
                            2 * member) = {sum[tile][n][2 * half], sum[tile][n][2 * half + 1]};
  }
}

// Every key that may be wrong, once the stage is written.
DEVICE_FUNCTION void settle_keys(const Params& p, const CodeBins& bins, int64_t source, bool hard,
                                 NearList* list, const Buffers& b) {
  device::sync_wave();
  const int count = list->count;
  if (count == 0 && !device::any(hard)) return;
  const bool full = count > kNearRoom;
  const int bits = p.s.format.key_bits;
  DEVICE_ROLLED
  for (int n = 0; n < count && !full; ++n) {
    const int vector = list->element[n] / 256, dim = list->element[n] % 256;
    const uint32_t code = exact_code(p.s, bins, device::shuffle(source, vector), dim);
    if (device::lane() != 0) continue;
    const int shift = dim * bits % 8;
    uint8_t* at = b.stage + vector * p.stage.used + dim * bits / 8;
    const uint32_t mask = ((1u << bits) - 1) << shift, moved = code << shift;
    at[0] = static_cast<uint8_t>((at[0] & ~mask) | moved);
    if (shift + bits > 8) at[1] = static_cast<uint8_t>((at[1] & ~(mask >> 8)) | moved >> 8);
  }
  DEVICE_ROLLED
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = device::shuffle(source, v);
    if ((device::shuffle(static_cast<int>(hard), v) || full) &&
        device::lane() * kGroup < p.s.format.head_dim)
      encode_centroid_key(p.s, Slot{b.stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
  }
  device::sync_wave();
  if (device::lane() == 0) list->count = 0;
}

// The stage to the cache.
DEVICE_FUNCTION void write_slots(const Params& p, int64_t target, int64_t first,
                                 const uint8_t* stage) {
  device::sync_wave();
  const int64_t left = p.vectors - first;
  const int count = left < kVectors ? static_cast<int>(left) : kVectors;
  const int heads = static_cast<int>(p.s.heads);
  int v = 0;
  int head = static_cast<int>(static_cast<uint32_t>(first) % static_cast<uint32_t>(heads));
  while (v < count) {
    const int joined = p.stage.heads_join ? device::min(heads - head, count - v) : 1;
    const int64_t slot = device::shuffle(target, v);
    if (slot != kMasked)
      copy_run(p.stage, p.s.cache.data + slot, stage + v * p.stage.used, joined * p.stage.used);
    v += joined;
    head = 0;
  }
  device::sync_wave();
}

// Vectors [first, last) of a block; encoder w takes pieces w, w + encoders ...
struct Share {
  int64_t first, last;
};
DEVICE_FUNCTION Share share_of_block(const Params& p) {
  const int64_t first = int64_t{device::block_x()} * p.work * kVectors;
  const int64_t last = first + int64_t{p.work} * kVectors;
  return {first, last < p.vectors ? last : p.vectors};
}
DEVICE_FUNCTION int64_t first_of_wave(const Params& p, const Share& share) {
  return device::wave() < p.encoders ? share.first + device::wave() * kVectors : share.last;
}
template <class Writer>
DEVICE_FUNCTION void collect_writers(const Params& p, Writer& writer, const Share& share) {
  writer.collect(p.s, place_of(p, share.first).token, place_of(p, share.last - 1).token + 1);
}

template <class T, int D>
DEVICE_KERNEL(kThreads)
encode_centroids(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(int32_t, slots, kWriterEntries);
  DEVICE_SHARED(int32_t, tokens, kWriterEntries);
  DEVICE_SHARED(float, scratch, 32);
  DEVICE_SHARED(CodeBins, bins, 1);
  DEVICE_SHARED(NearList, lists, kMostWaves);
  DEVICE_SHARED(float, squares, kMostWaves* kVectors);
  // Parts of Pi, tiles, then sums and stages. Pi as it is fetched lies over the last two, or, where
  // a block has less memory, over the tiles too.
  auto* parts = reinterpret_cast<Halves8*>(device::data(shared));
  uint8_t* tiles = reinterpret_cast<uint8_t*>(parts + 2 * SplitPi<D>::kPart);
  uint8_t* rest = tiles + p.encoders * kVectors * p.tile_pitch;
  uint8_t* own = rest + device::wave() * (kSumBytes + p.stage_bytes);
  const Buffers b{tiles + device::wave() * kVectors * p.tile_pitch, reinterpret_cast<float*>(own),
                  own + kSumBytes};
  NearList* list = device::data(lists) + device::wave();
  float* squares_of_wave = device::data(squares) + device::wave() * kVectors;

  auto* fetched = reinterpret_cast<Floats4*>(p.tiles_early ? rest : tiles);
  fetch_rotation<D>(p.s.pi, fetched);
  device::copy_async_commit();
  const Share share = share_of_block(p);
  int64_t first = first_of_wave(p, share);
  Sources sources = find_sources(p, first);
  Vectors32<D> x;
  const bool any = first < share.last;
  if (any && p.tiles_early)
    fetch_tile<T>(p, p.s.value, sources.value, b.tile);
  else
    device::copy_async_commit();
  if (any) load_keys<T, D>(p, sources.key, x);
  if (device::wave() == 0)
    fill_bins(device::data(bins), p.s.centroids, 1 << p.s.format.key_bits, kRotationError<T, D>);
  if (device::lane() == 0) list->count = 0;
  LastWriter<decltype(slots), decltype(tokens)> writer{slots, tokens};
  collect_writers(p, writer, share);
  device::copy_async_wait<1>();
  device::sync_block();
  const SplitPi<D> pi = split_rotation<T, D>(fetched, parts, scratch);
  if (any && !p.tiles_early) fetch_tile<T>(p, p.s.value, sources.value, b.tile);

  while (first < share.last) {
    const int64_t target = find_target(p, writer, first);
    device::copy_async_wait<0>();
    device::sync_wave();
    const bool hard_value = !encode_value_of_lane<T>(p, b) && target != kMasked;
    const int64_t next = first + p.encoders * kVectors;
    const Sources now = sources;
    device::sync_wave();
    if (next < share.last) {
      sources = find_sources(p, next);
      fetch_tile<T>(p, p.s.value, sources.value, b.tile);
    }
    store_squares<T, D>(x, squares_of_wave);
    device::sync_wave();
    KeyScale k =
        scale_key<T>(p, b, squares_of_wave[device::lane()], pi.unit, bins[0].close, now.key);
    k.hard = k.hard && target != kMasked;
    if (target == kMasked) k.close = -1;
    DEVICE_ROLLED
    for (int from = 0; from < D; from += 32) {
      float sum[2][4][4] = {};
      DEVICE_ROLLED
      for (int part = 0; part < pi.count; ++part)
        add_products<T, D>(sum, x, pi.parts + part * SplitPi<D>::kPart, from);
      store_sums(sum, b.sums);
      device::sync_wave();
      encode_sums_of_lane(p, bins[0], b, k, from, list);
      device::sync_wave();
    }
    if (next < share.last) load_keys<T, D>(p, sources.key, x);
    settle_keys(p, bins[0], now.key, k.hard, list, b);
    settle_values(p, now.value, hard_value, b);
    write_slots(p, target, first, b.stage);
    first = next;
  }
}

// This lane's fp8 key from the tile to the stage. False: it holds a NaN.
template <class T>
DEVICE_FUNCTION bool encode_fp8_of_lane(const Params& p, const Buffers& b) {
  const auto* row = reinterpret_cast<const Halves8*>(b.tile + device::lane() * p.tile_pitch);
  uint8_t* slot = b.stage + device::lane() * p.stage.used;
  bool nan = false;
  DEVICE_ROLLED
  for (int i = 0; i < p.s.format.head_dim / 8; ++i) {
    const Halves8 x = device::load16<Halves8>(row + i);
    DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      const float low = device::low_half<T>(x.pair[n]), high = device::high_half<T>(x.pair[n]);
      nan = nan || device::isnan(low + high);
      stage_u16(slot, i * kGroup + 2 * n, device::pack_e4m3fn(low, high));
    }
  }
  return !nan;
}

// Two tiles a wave: values, keys.
template <class T>
DEVICE_KERNEL(kThreads)
encode_fp8s(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(int32_t, slots, kWriterEntries);
  DEVICE_SHARED(int32_t, tokens, kWriterEntries);
  const int tile_bytes = kVectors * p.tile_pitch;
  uint8_t* own = device::data(shared) + device::wave() * (2 * tile_bytes + p.stage_bytes);
  const Buffers values{own, nullptr, own + 2 * tile_bytes},
      keys{own + tile_bytes, nullptr, own + 2 * tile_bytes};
  const Share share = share_of_block(p);
  int64_t first = first_of_wave(p, share);
  Sources sources = find_sources(p, first);
  const auto fetch = [&] {
    fetch_tile<T>(p, p.s.value, sources.value, values.tile);
    fetch_tile<T>(p, p.s.key, sources.key, keys.tile);
  };
  if (first < share.last) fetch();
  LastWriter<decltype(slots), decltype(tokens)> writer{slots, tokens};
  collect_writers(p, writer, share);
  while (first < share.last) {
    const int64_t target = find_target(p, writer, first);
    device::copy_async_wait<0>();
    device::sync_wave();
    const bool hard_value = !encode_value_of_lane<T>(p, values) && target != kMasked;
    // The other flavours always take the definition's path.
    const bool hard_key =
        !(p.s.format.fp8 == TK_E4M3FN && encode_fp8_of_lane<T>(p, keys)) && target != kMasked;
    const int64_t next = first + p.encoders * kVectors;
    const Sources now = sources;
    device::sync_wave();
    if (next < share.last) {
      sources = find_sources(p, next);
      fetch();
    }
    if (device::any(hard_key)) DEVICE_ROLLED
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = device::shuffle(now.key, v);
      if (device::shuffle(static_cast<int>(hard_key), v) &&
          device::lane() * kGroup < p.s.format.head_dim)
        encode_fp8_key(p.s, Slot{keys.stage + v * p.stage.used, 1}, at, device::lane(), kGroup);
    }
    settle_values(p, now.value, hard_value, values);
    write_slots(p, target, first, values.stage);
    first = next;
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
    need(aligned16(t.data) && t.stride[2] == 1 && t.stride[0] % 8 == 0 && t.stride[1] % 8 == 0,
         what);
  }
  static uint64_t workspace(const toolkit::Args& a) {
    const Source s = source_of(a);
    const SlotFormat& f = s.format;
    if (f.fp8)
      need(f.head_dim % 16 == 0 && f.head_dim <= 128,
           "a head size that is a multiple of 16, up to 128");
    else
      need(f.head_dim == 64 || f.head_dim == 128, "a head size of 64 or 128");
    need(s.cache.stride[3] == 1 && reinterpret_cast<uintptr_t>(s.cache.data) % 2 == 0 &&
             s.cache.stride[0] % 2 == 0 && s.cache.stride[1] % 2 == 0 &&
             s.cache.stride[2] % 2 == 0 && f.value_at % 2 == 0,
         "slots and values aligned to 2 bytes");
    need(s.cache.blocks * s.cache.page <= INT32_MAX, "a cache of at most 2147483647 slots a head");
    need(s.tokens <= INT32_MAX / s.heads, "at most 2147483647 vectors");
    need(s.key.dtype == s.value.dtype && s.key.dtype != TK_F32,
         "keys and values in f16 or both in bf16");
    need_rows16(s.key, "keys whose rows are contiguous and aligned to 16 bytes");
    need_rows16(s.value, "values whose rows are contiguous and aligned to 16 bytes");
    if (!f.fp8)
      need(aligned16(s.pi.data) && s.pi.stride[1] == 1 && s.pi.stride[0] % 4 == 0,
           "a Pi whose rows are contiguous and aligned to 16 bytes");
    return 0;
  }

  static Params params(const Source& s) {
    Params p{};
    p.s = s;
    p.stage = stage_format(s.cache, s.format, s.heads, kVectors);
    p.stage_bytes = (kVectors * p.stage.used + 15) / 16 * 16;
    p.tile_pitch = s.format.head_dim * 2 + 16;
    p.vectors = s.tokens * s.heads;
    const int64_t work = (p.vectors + kVectors - 1) / kVectors;
    const int64_t share = (work + device::multiprocessors() - 1) / device::multiprocessors();
    p.work = static_cast<int>(std::min<int64_t>(share, kMostWork));
    return p;
  }
  // Shared memory: `fixed` bytes of a block and `own` bytes of each encoder; `fetched` bytes lie
  // over the latter for a while.
  template <class Kernel>
  static void start(Kernel kernel, Params p, int fixed, int own, int fetched, void* stream) {
    constexpr int kStatic = 14 * 1024;  // shared arrays, and what the system keeps
    const int most = static_cast<int>(device::shared_bytes_of_block()) - kStatic - fixed;
    p.encoders = std::min({kMostWaves, p.work, most / own});
    if (p.encoders < 1 || fetched > most)
      throw device::Unsupported("because it needs more shared memory than a block has");
    const int tiles = p.encoders * kVectors * p.tile_pitch;
    p.tiles_early = tiles + fetched <= most;
    const int used = std::max(p.encoders * own, p.tiles_early ? tiles + fetched : fetched);
    const int64_t share = int64_t{p.work} * kVectors;
    device::launch(kernel, device::Grid{(p.vectors + share - 1) / share, 1, 1}, kThreads,
                   static_cast<size_t>(fixed + used), stream, p);
  }
  template <class T, int D>
  static void start_centroids(const Params& p, void* stream) {
    start(encode_centroids<T, D>, p, 2 * 2 * D * D,
          kVectors * p.tile_pitch + kSumBytes + p.stage_bytes, 4 * D * D, stream);
  }
  template <class T>
  static void start(const Params& p, void* stream) {
    if (p.s.format.fp8)
      start(encode_fp8s<T>, p, 0, 2 * kVectors * p.tile_pitch + p.stage_bytes, 0, stream);
    else if (p.s.format.head_dim == 64)
      start_centroids<T, 64>(p, stream);
    else
      start_centroids<T, 128>(p, stream);
  }
  static void run(const device::OpCall& call) {
    const Source all = source_of(call.args);
    // In order, so that later tokens overwrite earlier ones.
    for (int64_t first = 0; first < all.tokens; first += kMostTokens) {
      Source s = all;
      s.tokens = std::min(kMostTokens, all.tokens - first);
      const auto skip = [&](auto& t) {
        t.data = static_cast<std::byte*>(t.data) +
                 first * t.stride[0] * static_cast<int64_t>(toolkit::bytes_of(t.dtype));
      };
      skip(s.key);
      skip(s.value);
      skip(s.slot_mapping);
      if (s.key.dtype == TK_F16)
        start<device::f16>(params(s), call.stream);
      else
        start<device::bf16>(params(s), call.stream);
    }
  }
};

DEVICE_OP(Encode)

}  // namespace sm_80
}  // namespace tq::encode
