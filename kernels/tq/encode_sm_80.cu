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
#include "tq/encode_keys.h"
#include "tq/encode_values.h"
#include "tq/encode_work.h"

namespace tq::encode {
namespace sm_80 {

template <class T, int D>
DEVICE_KERNEL_BLOCKS(kThreads, 1)
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
