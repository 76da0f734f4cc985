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
// decide it (some of ten thousand) is rotated again in double, by the whole wave. Vectors that are
// not finite, beyond f16 or whose squares leave fp32 take the definition's path (encode_item.h).
#include "tq/encode_eight.h"
#include "tq/encode_hadamard.h"
#include "tq/encode_keys.h"
#include "tq/encode_values.h"
#include "tq/encode_work.h"

namespace tq::encode {
namespace sm_80 {

template <class T, int D>
DEVICE_KERNEL_BLOCKS(kThreads, 1)
encode_centroids(Params p) {
  if (*p.is_hadamard) return;
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(WriterTables, writers, 1);
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
    fill_bins(device::data(bins), p.s.centroids, 1 << p.s.format.key_bits, kRotationError<T, D>,
              0x1p-17f);
  if (device::lane() == 0) list->count = 0;
  WriterTables& writer = *device::data(writers);
  const int64_t first_token = collect_writers(p, writer, share);
  device::copy_async_wait<1>();
  device::sync_block();
  const SplitPi<D> pi = split_rotation<T, D>(fetched, parts, scratch);
  if (any && !p.tiles_early) fetch_tile<T>(p, p.s.value, sources.value, b.tile);

  while (first < share.last) {
    const Place place = place_of(p, first + device::lane());
    const int64_t target = first + device::lane() < p.vectors
                               ? find_target(p, writer, first_token, place.token, place.head)
                               : kMasked;
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

// Pi is a Hadamard matrix times a magnitude; else the kernel leaves everything to
// encode_centroids.
template <class T, int D>
DEVICE_KERNEL_BLOCKS((kStreamThreads<T, D>), 1)
encode_hadamard(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(WriterTables, writers, 1);
  DEVICE_SHARED(CodeBins, bins, 1);
  constexpr int kThreads = kStreamThreads<T, D>;
  DEVICE_SHARED(NearList, lists, kThreads / device::kWave);
  WriterTables& writer = *device::data(writers);
  NearList* list = device::data(lists) + device::wave();
  uint8_t* stage = device::data(shared) + device::wave() * p.stage_bytes;
  const Share share = share_of_block(p);
  int64_t first = share.first + device::wave() * kEight;
  Walk at = walk_from(p, first);
  Piece<T> key[D / 32], value[D / 32];
  if (first < share.last) {
    load_eight<T, true>(p, p.s.value, at, value);
    load_eight<T, true>(p, p.s.key, at, key);
  }
  const float magnitude = p.s.pi.data[0];
  PiPieces<D, kThreads> pieces;
  pieces.load(p.s.pi, device::thread());
  uint8_t* slot = stage + group() * p.stage.used;
  HardVectors hard;
  if (first < share.last) hard.add_value(0, !encode_values<T, true>(p, value, slot));
  const int step = device::waves() * kEight;
  Walk now = at;
  at = next_of(p, at);
  if (first + step < share.last) load_eight<T, true>(p, p.s.value, at, value);
  const bool differs = !may_be_hadamard(p.s.pi, pieces, magnitude);
  const bool hadamard = !device::sync_block_any(differs);
  if (device::block_x() == 0 && device::thread() == 0) *p.is_hadamard = hadamard;
  if (!hadamard) return;
  if (device::wave() == 0)
    fill_bins(device::data(bins), p.s.centroids, 1 << p.s.format.key_bits, kHadamardError,
              kHadamardScaling);
  if (device::lane() == 0) list->count = 0;
  const int64_t first_token = collect_writers(p, writer, share);
  const float table =
      device::bit_cast<float>(device::data(bins)->bin[device::lane()] ^ 15);
  const bool usable = device::data(bins)->usable != 0;
  uint32_t factor[4];
  hadamard16<T>(factor);
  const int64_t begin = first;
  for (int round = 0; first < share.last; ++round) {
    const int64_t next = first + step;
    Sums<D> sums;
    rotate_eight<T, D>(factor, key, sums);
    if (next < share.last) load_eight<T, true>(p, p.s.key, at, key);
    const KeyScales k = scale_eight<D>(p, sums, magnitude, device::data(bins)->close, stage);
    encode_sums<D>(p, *device::data(bins), table, sums, k, stage, list);
    const bool settled = settle_near(p, *device::data(bins), now, list, stage);
    hard.add_key(round, is_hard(k) || !settled || !usable);
    write_eight(p, target_of_lane(p, writer, first_token, first, now), first, now.head, stage);
    first = next;
    if (first >= share.last) break;
    hard.add_value(round + 1, !encode_values<T, true>(p, value, slot));
    now = at;
    at = next_of(p, at);
    if (first + step < share.last) load_eight<T, true>(p, p.s.value, at, value);
  }
  settle_hard(p, writer, first_token, begin, hard);
}

// fp8 keys: a stream, nothing but conversions.
template <class T, int kLoads, bool kExactly>
DEVICE_KERNEL_BLOCKS((kStreamThreads<T, 32 * kLoads>), 1)
encode_fp8s(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(WriterTables, writers, 1);
  WriterTables& writer = *device::data(writers);
  uint8_t* stage = device::data(shared) + device::wave() * p.stage_bytes;
  uint8_t* slot = stage + group() * p.stage.used;
  const Share share = share_of_block(p);
  int64_t first = share.first + device::wave() * kEight;
  Walk at = walk_from(p, first);
  Piece<T> key[kLoads], value[kLoads];
  if (first < share.last) {
    load_eight<T, kExactly>(p, p.s.value, at, value);
    load_eight<T, kExactly>(p, p.s.key, at, key);
  }
  const int64_t first_token = collect_writers(p, writer, share);
  HardVectors hard;
  const int64_t begin = first;
  for (int round = 0; first < share.last; ++round) {
    const int64_t next = first + device::waves() * kEight;
    const Walk now = at;
    at = next_of(p, at);
    hard.add_value(round, !encode_values<T, kExactly>(p, value, slot));
    if (next < share.last) load_eight<T, kExactly>(p, p.s.value, at, value);
    hard.add_key(round, !encode_fp8_keys<T, kExactly>(p, key, slot));
    if (next < share.last) load_eight<T, kExactly>(p, p.s.key, at, key);
    write_eight(p, target_of_lane(p, writer, first_token, first, now), first, now.head, stage);
    first = next;
  }
  settle_hard(p, writer, first_token, begin, hard);
}

// The definition for every vector: a Pi that is no Hadamard matrix, where encode_centroids does not
// serve.
DEVICE_KERNEL_BLOCKS(kThreads, 1) encode_defined(Params p) {
  if (*p.is_hadamard) return;
  DEVICE_SHARED(WriterTables, writers, 1);
  WriterTables& writer = *device::data(writers);
  const Share share = share_of_block(p);
  const int64_t first_token = collect_writers(p, writer, share);
  for (int64_t v = share.first + device::wave(); v < share.last; v += device::waves())
    encode_by_definition(p, writer, first_token, v, true, true);
}

struct Encode {
  static constexpr const toolkit::Contract& contract = encode::contract;
  static constexpr const char* implementation = "sm_80";

  static void need(bool fact, const char* what) {
    if (!fact) throw device::Unsupported(std::string("because it needs ") + what);
  }
  static bool aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
  static void need_rows16(const Strided<3>& t, const char* what) {
    const int64_t elements = 16 / static_cast<int64_t>(toolkit::bytes_of(t.dtype));
    need(aligned16(t.data) && t.stride[2] == 1 && t.stride[0] % elements == 0 &&
             t.stride[1] % elements == 0,
         what);
  }
  static uint64_t workspace(const toolkit::Args& a) {
    const Source s = source_of(a);
    const SlotFormat& f = s.format;
    if (f.fp8)
      need(f.head_dim % 16 == 0 && f.head_dim <= 256,
           "a head size that is a multiple of 16, up to 256");
    else
      need(f.head_dim == 64 || f.head_dim == 128 || f.head_dim == 256,
           "a head size of 64, 128 or 256");
    need(s.cache.stride[3] == 1 && reinterpret_cast<uintptr_t>(s.cache.data) % 2 == 0 &&
             s.cache.stride[0] % 2 == 0 && s.cache.stride[1] % 2 == 0 &&
             s.cache.stride[2] % 2 == 0 && f.value_at % 2 == 0,
         "slots and values aligned to 2 bytes");
    need(s.cache.blocks * s.cache.page <= INT32_MAX, "a cache of at most 2147483647 slots a head");
    need(s.tokens <= INT32_MAX / s.heads, "at most 2147483647 vectors");
    need(s.key.dtype == s.value.dtype, "keys and values of one type");
    need_rows16(s.key, "keys whose rows are contiguous and aligned to 16 bytes");
    need_rows16(s.value, "values whose rows are contiguous and aligned to 16 bytes");
    if (!f.fp8)
      need(aligned16(s.pi.data) && s.pi.stride[1] == 1 && s.pi.stride[0] % 4 == 0,
           "a Pi whose rows are contiguous and aligned to 16 bytes");
    return f.fp8 ? 0 : sizeof(uint32_t);
  }

  // `vectors`: of a piece of work, `waves` of a block that work.
  static Params params(const Source& s, int vectors, std::byte* workspace) {
    Params p{};
    p.s = s;
    p.is_hadamard = reinterpret_cast<uint32_t*>(workspace);
    p.stage = stage_format(s.cache, s.format, s.heads, vectors);
    p.stage_bytes = (vectors * p.stage.used + 15) / 16 * 16;
    p.tile_pitch = s.format.head_dim * 2 + 16;
    p.vectors = s.tokens * s.heads;
    const int64_t work = (p.vectors + vectors - 1) / vectors;
    const int64_t share = (work + device::multiprocessors() - 1) / device::multiprocessors();
    p.work = static_cast<int>(std::min<int64_t>(share, kMostVectors / vectors)) * vectors;
    p.pages_join = s.cache.stride[0] == s.cache.page * s.cache.stride[1];
    p.words = p.stage.used % 4 == 0;
    const int levels = (1 << s.format.value_bits) - 1;
    p.value_radix = levels + 1;
    p.value_levels = static_cast<float>(levels);
    p.value_levels_inverse = 1.0f / p.value_levels;
    p.value_wholes = 0x4b000000u * (s.format.value_bits == 4 ? 0x11111111u : 0x249249u);
    return p;
  }
  static device::Grid grid(const Params& p) { return {(p.vectors + p.work - 1) / p.work, 1, 1}; }
  // Blocks of waves that take eight vectors at a time.
  template <class Kernel>
  static void stream(Kernel kernel, const Source& s, int threads, const device::OpCall& call) {
    Params p = params(s, kEight, call.workspace);
    const int step = threads / device::kWave * kEight;
    p.step_tokens = static_cast<int>(step / s.heads);
    p.step_heads = static_cast<int>(step % s.heads);
    device::launch(kernel, grid(p), threads,
                   static_cast<size_t>(threads / device::kWave * p.stage_bytes), call.stream, p);
  }
  // False: a block has too little shared memory.
  template <class T, int D>
  static bool start_centroids(Params p, void* stream) {
    constexpr int kStatic = 19 * 1024;  // shared arrays, and what the system keeps
    constexpr int kFixed = 2 * 2 * D * D, kFetched = 4 * D * D;
    const int own = kVectors * p.tile_pitch + kSumBytes + p.stage_bytes;
    const int most = static_cast<int>(device::shared_bytes_of_block()) - kStatic - kFixed;
    p.encoders = std::min({kMostWaves, p.work / kVectors, most / own});
    if (p.encoders < 1 || kFetched > most) return false;
    const int tiles = p.encoders * kVectors * p.tile_pitch;
    p.tiles_early = tiles + kFetched <= most;
    const int used = std::max(p.encoders * own, p.tiles_early ? tiles + kFetched : kFetched);
    device::launch(encode_centroids<T, D>, grid(p), kThreads, static_cast<size_t>(kFixed + used),
                   stream, p);
    return true;
  }
  template <class T, int D>
  static void start_any(const Source& s, const device::OpCall& call) {
    stream(encode_hadamard<T, D>, s, kStreamThreads<T, D>, call);
    const Params p = params(s, kVectors, call.workspace);
    if constexpr (!std::is_same_v<T, float> && D <= 128)
      if (start_centroids<T, D>(p, call.stream)) return;
    device::launch(encode_defined, grid(p), kThreads, 0, call.stream, p);
  }
  template <class T, int kLoads, bool kExactly>
  static void start_fp8s(const Source& s, const device::OpCall& call) {
    stream(encode_fp8s<T, kLoads, kExactly>, s, kStreamThreads<T, 32 * kLoads>, call);
  }
  template <class T>
  static void start(const Source& s, const device::OpCall& call) {
    const int dim = s.format.head_dim;
    if (!s.format.fp8)
      dim == 64    ? start_any<T, 64>(s, call)
      : dim == 128 ? start_any<T, 128>(s, call)
                   : start_any<T, 256>(s, call);
    else if (dim == 64)
      start_fp8s<T, 2, true>(s, call);
    else if (dim == 96)
      start_fp8s<T, 3, true>(s, call);
    else if (dim == 128)
      start_fp8s<T, 4, true>(s, call);
    else if (dim < 128)
      start_fp8s<T, 4, false>(s, call);
    else if (dim == 256)
      start_fp8s<T, 8, true>(s, call);
    else
      start_fp8s<T, 8, false>(s, call);
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
        start<device::f16>(s, call);
      else if (s.key.dtype == TK_BF16)
        start<device::bf16>(s, call);
      else
        start<float>(s, call);
    }
  }
};

DEVICE_OP(Encode)

}  // namespace sm_80
}  // namespace tq::encode
