// SPDX-License-Identifier: Apache-2.0
// tq.encode for NVIDIA GPUs: head sizes 64, 128 and 256 (fp8 keys: multiples of 16 up to 256) and
// slots aligned to 2 bytes.
//
// A wave encodes eight vectors at a time, a vector being a head of a token, straight from global
// memory into registers; codes pass through shared memory to be written in large pieces. One block
// a multiprocessor, whose waves meet only before the first of their slots is written: by then it is
// known which tokens write (last_writer.h), and whether Pi is a Hadamard matrix. Nothing of that
// waits on the host, which cannot look at Pi.
//
// Codes are exact: an element that lies so near to a midpoint that the rounding of fp32 sums could
// decide it (some of ten thousand) is rotated again in double, by the whole wave. Vectors that are
// not finite, beyond f16, tiny, or whose squares leave fp32 take the definition's path
// (encode_item.h), and so do the keys of a Pi that neither way of encode_rotation.h serves.
#include <cstdlib>

#include "tq/encode_keys.h"

namespace tq::encode {
namespace sm_80 {

template <class T, int D>
DEVICE_KERNEL_BLOCKS((kThreads<T, D>), 1)
encode_centroids(Params p) {
  constexpr int kBlock = kThreads<T, D>;
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(WriterTables, writers, 1);
  DEVICE_SHARED(CodeBins, all_bins, 1);
  DEVICE_SHARED(NearList, lists, kBlock / device::kWave);
  DEVICE_SHARED(float, scratch, 32);
  const WriterTables& writer = *device::data(writers);
  const CodeBins& bins = *device::data(all_bins);
  NearList* list = device::data(lists) + device::wave();
  auto* factors = reinterpret_cast<Halves8*>(device::data(shared));
  uint8_t* stage = device::data(shared) + p.matrix_bytes + device::wave() * p.stage_bytes;
  uint8_t* slot = stage + group() * p.stage.used;
  const int step = device::waves() * kEight;

  const Share share = share_of_block(p);
  int first = share.first + device::wave() * kEight;
  Walk at = walk_from(p, first);
  // What all blocks wait for first: behind the vectors of the whole device it would come late.
  LastWriter last_writer(p.s, *device::data(writers), share.token,
                         place_of(p, share.last - 1).token + 1);
  const int levels = 1 << p.s.format.key_bits;
  const bool fills = device::wave() == device::waves() - 1;
  const float mine = fills ? load_midpoint(p.s.centroids, levels) : 0;
  const float magnitude = p.s.pi.data[0];
  PiPieces<D, kBlock> pieces;
  pieces.load(p.s.pi, 0);
  Piece<T> key[D / 32], value[D / 32];
  if (first < share.last) {
    load_eight<T, true>(p, p.value, at, value);
    load_eight<T, true>(p, p.key, at, key);
  }
  if (device::lane() == 0) list->count = 0;
  last_writer.clear();
  device::sync_block();
  if (fills) fill_bins(device::data(all_bins), mine, levels);
  last_writer.enter();
  const bool differs = !may_be_hadamard(p.s.pi, pieces, magnitude);
  const bool hadamard = !device::sync_block_any(differs);
  last_writer.scan();
  MatrixPi matrix{factors, 0, magnitude};
  if constexpr (kHasMatrix<T, D>)
    if (!hadamard && p.matrix_bytes) matrix = split_matrix<T, D>(p.s.pi, factors, scratch);
  device::sync_block();
  last_writer.settle();
  device::sync_block();

  HardVectors hard;
  if (first < share.last) hard.add_value(0, !encode_values<T, true>(p, value, slot));
  if (first + step < share.last) load_eight<T, true>(p, p.value, next_of(p, at), value);
  const float close = matrix.parts ? close_to_midpoints(bins, kMatrixError<T, D>, kMatrixScaling)
                                   : close_to_midpoints(bins, kHadamardError, kHadamardScaling);
  const bool defined = (!hadamard && !matrix.parts) || !usable(bins, close);
  const float table = device::bit_cast<float>(bins.bin[device::lane()]);
  uint32_t factor[4];
  hadamard16<T>(factor);
  for (int round = 0; first < share.last; ++round) {
    const bool more = first + step < share.last;
    Sums<D> sums;
    float squares[2];
    if (hadamard || !kHasMatrix<T, D>) {
      rotate_by_hadamard<T, D>(factor, key, sums);
      square_sums(sums, squares);
    } else if constexpr (kHasMatrix<T, D>) {
      square_keys<T>(key, squares);
      rotate_by_matrix<T, D>(matrix, key, sums);
    }
    if (more) load_eight<T, true>(p, p.key, next_of(p, at), key);
    const KeyScales k = scale_keys(p, sums, squares, matrix.unit, close, stage);
    encode_sums(p, bins, table, sums, k, stage, list);
    const bool settled = settle_near<T, D>(p, bins, at, list, stage);
    hard.add_key(round, is_hard(k) || !settled || defined);
    write_eight(p, writer, share, first, at, stage);
    first += step;
    if (!more) break;
    // The values of the next ones: their places are free.
    hard.add_value(round + 1, !encode_values<T, true>(p, value, slot));
    at = next_of(p, at);
    if (first + step < share.last) load_eight<T, true>(p, p.value, next_of(p, at), value);
  }
  settle_hard(p, writer, share, hard);
}

// fp8 keys: a stream, nothing but conversions.
template <class T, int kLoads, bool kExactly>
DEVICE_KERNEL_BLOCKS((kThreads<T, 32 * kLoads>), 1)
encode_fp8s(Params p) {
  DEVICE_DYNAMIC_SHARED(uint8_t, shared);
  DEVICE_SHARED(WriterTables, writers, 1);
  const WriterTables& writer = *device::data(writers);
  uint8_t* stage = device::data(shared) + device::wave() * p.stage_bytes;
  uint8_t* slot = stage + group() * p.stage.used;
  const int step = device::waves() * kEight;
  const Share share = share_of_block(p);
  int first = share.first + device::wave() * kEight;
  Walk at = walk_from(p, first);
  LastWriter last_writer(p.s, *device::data(writers), share.token,
                         place_of(p, share.last - 1).token + 1);
  Piece<T> key[kLoads], value[kLoads];
  if (first < share.last) {
    load_eight<T, kExactly>(p, p.value, at, value);
    load_eight<T, kExactly>(p, p.key, at, key);
  }
  last_writer.clear();
  device::sync_block();
  last_writer.enter();
  device::sync_block();
  last_writer.scan();
  device::sync_block();
  last_writer.settle();
  device::sync_block();
  HardVectors hard;
  for (int round = 0; first < share.last; ++round) {
    const bool more = first + step < share.last;
    const Walk next = next_of(p, at);
    hard.add_value(round, !encode_values<T, kExactly>(p, value, slot));
    if (more) load_eight<T, kExactly>(p, p.value, next, value);
    hard.add_key(round, !encode_fp8_keys<T, kExactly>(p, key, slot));
    if (more) load_eight<T, kExactly>(p, p.key, next, key);
    write_eight(p, writer, share, first, at, stage);
    first += step;
    at = next;
  }
  settle_hard(p, writer, share, hard);
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
             t.stride[1] % elements == 0 && std::abs(t.stride[0]) <= INT32_MAX &&
             std::abs(t.stride[1]) <= INT32_MAX,
         what);
  }
  static Rows rows_of(const Strided<3>& t) {
    return {t.data, static_cast<int>(t.stride[0]), static_cast<int>(t.stride[1])};
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
    need(std::min(s.tokens, kMostTokens) <= INT32_MAX / 2 / s.heads, "at most 1073741823 vectors");
    need(s.key.dtype == s.value.dtype, "keys and values of one type");
    need_rows16(s.key,
                "keys whose rows are contiguous, aligned to 16 bytes and less than 2^31 apart");
    need_rows16(s.value,
                "values whose rows are contiguous, aligned to 16 bytes and less than 2^31 apart");
    if (!f.fp8)
      need(aligned16(s.pi.data) && s.pi.stride[1] == 1 && s.pi.stride[0] % 4 == 0,
           "a Pi whose rows are contiguous and aligned to 16 bytes");
    return 0;
  }

  template <class Kernel>
  static void start(Kernel kernel, const Source& s, int threads, int matrix_bytes, void* stream) {
    Params p{};
    p.s = s;
    p.key = rows_of(s.key);
    p.value = rows_of(s.value);
    p.stage = stage_format(s.cache, s.format, s.heads, kEight);
    p.stage_bytes = (kEight * p.stage.used + 15) / 16 * 16;
    p.heads = static_cast<int>(s.heads);
    p.tokens = static_cast<int>(s.tokens);
    p.vectors = p.tokens * p.heads;
    const int work = (p.vectors + kEight - 1) / kEight;
    const int share = (work + device::multiprocessors() - 1) / device::multiprocessors();
    p.work = std::min(share, kMostVectors / kEight) * kEight;
    const int waves = threads / device::kWave, step = waves * kEight;
    p.step_tokens = step / p.heads;
    p.step_heads = step % p.heads;
    p.words = p.stage.used % 4 == 0;
    const int levels = (1 << s.format.value_bits) - 1;
    p.value_radix = levels + 1;
    p.value_levels = static_cast<float>(levels);
    p.value_levels_inverse = 1.0f / p.value_levels;
    p.value_wholes = 0x4b000000u * (s.format.value_bits == 4 ? 0x11111111u : 0x249249u);
    constexpr int kStatic = 24 * 1024;  // shared arrays, and what the system keeps
    const int stages = waves * p.stage_bytes;
    const int room = static_cast<int>(device::shared_bytes_of_block()) - kStatic - stages;
    p.matrix_bytes = matrix_bytes <= room ? matrix_bytes : 0;
    device::launch(kernel, device::Grid{(p.vectors + p.work - 1) / p.work}, threads,
                   static_cast<size_t>(p.matrix_bytes + stages), stream, p);
  }
  template <class T, int D>
  static void start_centroids(const Source& s, void* stream) {
    constexpr int kMatrix = kHasMatrix<T, D> ? 2 * kFactors<D> * sizeof(Halves8) : 0;
    start(encode_centroids<T, D>, s, kThreads<T, D>, kMatrix, stream);
  }
  template <class T, int kLoads, bool kExactly>
  static void start_fp8s(const Source& s, void* stream) {
    start(encode_fp8s<T, kLoads, kExactly>, s, kThreads<T, 32 * kLoads>, 0, stream);
  }
  template <class T>
  static void start_of(const Source& s, void* stream) {
    const int dim = s.format.head_dim;
    if (!s.format.fp8)
      dim == 64    ? start_centroids<T, 64>(s, stream)
      : dim == 128 ? start_centroids<T, 128>(s, stream)
                   : start_centroids<T, 256>(s, stream);
    else if (dim == 64)
      start_fp8s<T, 2, true>(s, stream);
    else if (dim == 96)
      start_fp8s<T, 3, true>(s, stream);
    else if (dim == 128)
      start_fp8s<T, 4, true>(s, stream);
    else if (dim < 128)
      start_fp8s<T, 4, false>(s, stream);
    else if (dim == 256)
      start_fp8s<T, 8, true>(s, stream);
    else
      start_fp8s<T, 8, false>(s, stream);
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
        start_of<device::f16>(s, call.stream);
      else if (s.key.dtype == TK_BF16)
        start_of<device::bf16>(s, call.stream);
      else
        start_of<float>(s, call.stream);
    }
  }
};

DEVICE_OP(Encode)

}  // namespace sm_80
}  // namespace tq::encode
