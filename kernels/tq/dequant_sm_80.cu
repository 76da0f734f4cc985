// SPDX-License-Identifier: Apache-2.0
// tq.dequant where slots are 2-byte aligned and head sizes multiples of 16: a wave takes 32 tokens
// of one head, several slots at a time, eight elements of a key and of its value a lane. The heads
// of a token lie in neighbouring waves, whose slots share cache lines. dequant.md says why.
#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/dequant.h"
#include "tq/slot_codes.h"

namespace tq::dequant {

namespace sm_80 {

inline constexpr int kThreads = 256;
inline constexpr int kTokens = device::kWave;  // of a wave's item: a lane finds one's slot
inline constexpr int kBatch = 2;               // slots a lane has in flight

struct Params {
  Cache cache;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  bool norm_correction;
  Strided<4> k, v;  // [B,Hk,tokens,D] f16
  int64_t heads, tokens, chunks;
  int64_t items;      // B * chunks * Hk
  int lanes_of_slot;  // a power of two, >= D / 8
};

// Four words that go out at once.
struct Row8 {
  uint32_t pair[4];  // of f16
};

DEVICE_FUNCTION uint32_t load_u16(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}
DEVICE_FUNCTION float half_at(const uint8_t* at) {
  return device::low_half<device::f16>(load_u16(at));
}

// The codes of elements [8 group, 8 group + 8) of a stream, the first at bit 0; undefined bits
// above them. Streams of 3 bits have a multiple of 6 bytes: what is read beyond a group is
// another's.
template <int Bits>
DEVICE_FUNCTION uint32_t load_codes(const uint8_t* stream, int group) {
  static_assert(Bits == 3 || Bits == 4);
  const int at = group * Bits & ~1;
  const uint32_t word = load_u16(stream + at) | load_u16(stream + at + 2) << 16;
  return Bits == 3 ? word >> ((group & 1) * 8) : word;
}

// What a lane reads of a slot.
struct Piece {
  uint32_t key[2], value;
  float norm, scale, zero;
};

template <int KeyBits, int ValueBits>
DEVICE_FUNCTION Piece load_piece(const SlotFormat& f, const uint8_t* slot, int group) {
  Piece piece{};
  if constexpr (KeyBits == 8) {
    for (int i = 0; i < 2; ++i)
      piece.key[i] = load_u16(slot + group * kGroup + 4 * i) |
                     load_u16(slot + group * kGroup + 4 * i + 2) << 16;
  } else {
    piece.key[0] = load_codes<KeyBits>(slot, group);
    piece.norm = half_at(slot + f.norm_at);
  }
  piece.value = load_codes<ValueBits>(slot + f.value_at, group);
  piece.scale = half_at(slot + f.scale_at);
  piece.zero = half_at(slot + f.zero_at);
  return piece;
}

// An e4m3 byte moved into an f16's exponent and mantissa is the number times a power of two, also
// where it is denormal.
DEVICE_FUNCTION uint32_t fp8_pair(uint32_t bytes_high, uint32_t factor) {
  const uint32_t pair = (bytes_high & 0x80008000u) | ((bytes_high & 0x7f007f00u) >> 1);
  return device::multiply_f16x2(pair, factor);
}
DEVICE_FUNCTION bool is_nan_byte(tk_dtype flavour, uint32_t byte) {
  if (flavour == TK_E4M3FN) return (byte & 0x7f) == 0x7f;
  return flavour == TK_E4M3FNUZ && byte == 0x80;
}
DEVICE_FUNCTION bool has_nan_byte(tk_dtype flavour, uint32_t bytes) {
  if (flavour == TK_E4M3FN) return (((bytes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
  if (flavour != TK_E4M3FNUZ) return false;
  const uint32_t x = bytes ^ 0x80808080u;  // a byte 0?
  return ((x - 0x01010101u) & ~x & 0x80808080u) != 0;
}
DEVICE_FUNCTION Row8 fp8_row(tk_dtype flavour, const uint32_t (&bytes)[2]) {
  const uint32_t factor = flavour == TK_E4M3FN     ? 0x5c005c00u   // 2^8
                          : flavour == TK_E4M3FNUZ ? 0x58005800u   // 2^7
                                                   : 0x3c003c00u;  // 1
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 2; ++i) {
    row.pair[2 * i] = fp8_pair(device::permute_bytes(bytes[i], 0, 0x1404), factor);
    row.pair[2 * i + 1] = fp8_pair(device::permute_bytes(bytes[i], 0, 0x3424), factor);
    if (has_nan_byte(flavour, bytes[i])) {
      DEVICE_UNROLL
      for (int b = 0; b < 4; ++b)
        if (is_nan_byte(flavour, bytes[i] >> (8 * b) & 255))
          row.pair[2 * i + b / 2] |= b % 2 ? 0x7e000000u : 0x7e00u;
    }
  }
  return row;
}

// Centroids times the norm; with norm correction times norm / sqrt(sum c^2 + 1e-16), the sum over
// the lanes of the slot.
template <int Bits, class Table>
DEVICE_FUNCTION Row8 centroid_row(const Params& p, Table& centroids, const Piece& piece,
                                  bool active) {
  float c[kGroup];
  float squares = 0;
  DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e) {
    c[e] = centroids[piece.key[0] >> (e * Bits) & ((1 << Bits) - 1)];
    squares = device::fma(c[e], c[e], squares);
  }
  float factor = piece.norm;
  if (p.norm_correction) {
    if (!active) squares = 0;
    for (int mask = p.lanes_of_slot / 2; mask > 0; mask /= 2)
      squares += device::shuffle_xor(squares, mask);
    factor = device::divide(factor, device::sqrt(squares + 1e-16f));
  }
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i)
    row.pair[i] = device::pack_halves<device::f16>(factor * c[2 * i], factor * c[2 * i + 1]);
  return row;
}

template <int Bits>
DEVICE_FUNCTION float value_element(const Piece& piece, int e) {
  const uint32_t code = piece.value >> (e * Bits) & ((1 << Bits) - 1);
  const float number = device::bit_cast<float>(0x4b000000u | code) - 8388608.0f;  // 2^23
  return device::fma(number, piece.scale, piece.zero);  // the product is exact: rounded once
}
template <int Bits>
DEVICE_FUNCTION Row8 value_row(const Piece& piece) {
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i)
    row.pair[i] = device::pack_halves<device::f16>(value_element<Bits>(piece, 2 * i),
                                                   value_element<Bits>(piece, 2 * i + 1));
  return row;
}

DEVICE_FUNCTION void store_row(const Strided<4>& t, int64_t at, const Row8& row) {
  device::store16(static_cast<device::f16*>(t.data) + at, row);
}

template <int KeyBits, int ValueBits>
DEVICE_KERNEL(kThreads)
dequant_slots(Params p) {
  DEVICE_SHARED(float, centroids, 16);
  if constexpr (KeyBits < 8) {
    if (device::thread() < 1 << KeyBits)
      centroids[device::thread()] = p.centroids.data[device::thread() * p.centroids.stride];
    device::sync_block();
  }
  const int lanes = p.lanes_of_slot, lane = device::lane();
  const int group = lane & (lanes - 1), first = lane / lanes, step = device::kWave / lanes;
  const bool active = group * kGroup < p.format.head_dim;
  for (int64_t item = int64_t{device::block_x()} * device::waves() + device::wave(); item < p.items;
       item += int64_t{device::blocks_x()} * device::waves()) {
    const int64_t head = item % p.heads, chunk = item / p.heads % p.chunks,
                  row = item / p.heads / p.chunks;
    const int64_t begin = chunk * kTokens;
    const int count =
        static_cast<int>(p.tokens - begin < kTokens ? p.tokens - begin : int64_t{kTokens});
    const int64_t offset =
        lane < count ? find_slot(p.cache, p.table, row, begin + lane, head) : kMasked;
    const int64_t k_at = row * p.k.stride[0] + head * p.k.stride[1] + begin * p.k.stride[2];
    const int64_t v_at = row * p.v.stride[0] + head * p.v.stride[1] + begin * p.v.stride[2];
    for (int token = first; token - first < count; token += step * kBatch) {
      Piece piece[kBatch];
      bool live[kBatch];
      DEVICE_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int64_t at = device::shuffle(offset, (token + i * step) & (kTokens - 1));
        live[i] = at != kMasked;
        piece[i] = Piece{};
        if (live[i] && active)
          piece[i] = load_piece<KeyBits, ValueBits>(p.format, p.cache.data + at, group);
      }
      DEVICE_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        Row8 k, v = value_row<ValueBits>(piece[i]);
        if constexpr (KeyBits == 8)
          k = fp8_row(p.format.fp8, piece[i].key);
        else
          k = centroid_row<KeyBits>(p, centroids, piece[i], active);
        if (!live[i]) k = v = Row8{};
        const int64_t t = token + i * step;
        if (t >= count || !active) continue;
        store_row(p.k, k_at + t * p.k.stride[2] + group * kGroup, k);
        store_row(p.v, v_at + t * p.v.stride[2] + group * kGroup, v);
      }
    }
  }
}

struct Dequant {
  static constexpr const toolkit::Contract& contract = dequant::contract;
  static constexpr const char* implementation = "sm_80";

  static void need(bool fact, const char* what) {
    if (!fact) throw device::Unsupported(std::string("because it needs ") + what);
  }
  static void need_rows16(const TensorView& t) {
    need(reinterpret_cast<uintptr_t>(t.data<void>()) % 16 == 0 && t.stride(3) == 1 &&
             t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(2) % 8 == 0,
         "outputs whose rows are contiguous and aligned to 16 bytes");
  }
  // Pointers are looked at in run() only where the query has none.
  static uint64_t workspace(const toolkit::Args& a) {
    const Cache cache = cache_of(a);
    const SlotFormat f = slot_format(a, head_dim(a));
    need(f.head_dim % 16 == 0 && f.head_dim <= 256,
         "a head size that is a multiple of 16, up to 256");
    need(cache.stride[3] == 1 && reinterpret_cast<uintptr_t>(cache.data) % 2 == 0 &&
             cache.stride[0] % 2 == 0 && cache.stride[1] % 2 == 0 && cache.stride[2] % 2 == 0 &&
             f.value_at % 2 == 0,
         "slots and values aligned to 2 bytes");
    need_rows16(a.tensor("k"));
    need_rows16(a.tensor("v"));
    return 0;
  }
  template <int KeyBits>
  static void start(const Params& p, const device::OpCall& call) {
    constexpr int kWaves = kThreads / device::kWave;
    const int64_t blocks = (p.items + kWaves - 1) / kWaves, most = int64_t{1} << 30;
    const device::Grid grid{blocks < most ? blocks : most, 1, 1};
    if (p.format.value_bits == 3)
      device::launch(dequant_slots<KeyBits, 3>, grid, kThreads, 0, call.stream, p);
    else
      device::launch(dequant_slots<KeyBits, 4>, grid, kThreads, 0, call.stream, p);
  }
  static void run(const device::OpCall& call) {
    const Args& a = call.args;
    Params p{};
    p.cache = cache_of(a);
    p.table = page_table(a);
    p.format = slot_format(a, head_dim(a));
    p.centroids = codebook(a, p.format);
    p.norm_correction = a.boolean("norm_correction");
    p.k = strided<4>(call.tensor("k"));
    p.v = strided<4>(call.tensor("v"));
    p.heads = a.tensor("kv_cache").size(2);
    p.tokens = tokens(a);
    p.chunks = (p.tokens + kTokens - 1) / kTokens;
    p.items = a.tensor("block_table").size(0) * p.heads * p.chunks;
    p.lanes_of_slot = 2;
    while (p.lanes_of_slot * kGroup < p.format.head_dim) p.lanes_of_slot *= 2;
    if (p.items == 0) return;
    if (p.format.fp8)
      start<8>(p, call);
    else if (p.format.key_bits == 3)
      start<3>(p, call);
    else
      start<4>(p, call);
  }
};

DEVICE_OP(Dequant)

}  // namespace sm_80

}  // namespace tq::dequant
