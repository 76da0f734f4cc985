// SPDX-License-Identifier: Apache-2.0
// tq.dequant where slots are 2-byte aligned and head sizes multiples of 16: a wave takes 32 tokens
// of one head, several slots at a time, eight elements of a key and of its value a lane. The heads
// of a token lie in neighbouring waves, whose slots share cache lines. dequant.md says why.
#include <bit>

#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/dequant.h"
#include "tq/slot_codes.h"

namespace tq::dequant {

namespace sm_80 {

inline constexpr int kThreads = 256, kWaves = kThreads / device::kWave;
inline constexpr int kBlocks = 4;      // of a multiprocessor
inline constexpr int kMostSlots = 32;  // of an item

// n / divisor for 0 <= n < 2^31, without a division.
struct Divider {
  uint32_t factor, shift;
  Divider() = default;
  explicit Divider(uint32_t divisor) : shift(31 + uint32_t(std::bit_width(divisor - 1))) {
    factor = uint32_t(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  DEVICE_FUNCTION int operator()(int n) const {
    return static_cast<int>(uint64_t{static_cast<uint32_t>(n)} * factor >> shift);
  }
};

struct Params {
  Cache cache;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  bool norm_correction;
  Strided<4> k, v;  // [B,Hk,tokens,D] f16
  int heads, tokens;
  // An item is a number of tokens (a power of two) of some heads.
  int items, rows, chunks, head_chunks, item_heads, tokens_log2;
  Divider page, chunk, head_chunk;
  int slot, run_pitch, stage_bytes;
  bool pieces16;  // runs of a token's heads are copied by 16 bytes
  int k_bytes[2], v_bytes[2];  // from head to head, from token to token
  uint32_t magic;              // 2^23 as a float: in a register, else an instruction has it twice
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

// What a lane reads of a slot: two groups of its key and of its value, `kApart` groups apart.
struct Piece {
  uint32_t key[2][2], value[2];
  float norm, scale, zero;
};

template <int KeyBits, int ValueBits, int kApart>
DEVICE_FUNCTION Piece load_piece(const SlotFormat& f, const uint8_t* slot, int group, int apart) {
  Piece piece{};
  const uint8_t* value = slot + f.value_at;
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int own = n == 0 ? group : group + apart;
    if constexpr (KeyBits == 8) {  // words: the size of the slot is a multiple of 4
      DEVICE_UNROLL
      for (int i = 0; i < 2; ++i)
        piece.key[n][i] = *reinterpret_cast<const uint32_t*>(slot + own * kGroup + 4 * i);
    } else {
      piece.key[n][0] = load_codes<KeyBits>(slot, own);
    }
    if constexpr (KeyBits == 8 && ValueBits == 4)
      piece.value[n] = *reinterpret_cast<const uint32_t*>(value + 4 * own);
    else
      piece.value[n] = load_codes<ValueBits>(value, own);
  }
  if constexpr (KeyBits < 8) piece.norm = half_at(slot + f.norm_at);
  piece.scale = half_at(slot + f.scale_at);
  piece.zero = half_at(slot + f.zero_at);
  return piece;
}

// Code e of a group in the low bits of a word that has `above` elsewhere; shifted left by kShift.
template <int Bits, int kShift>
struct Codes {
  uint32_t even, odd;  // 4 bits: the codes as bytes
  DEVICE_FUNCTION explicit Codes(uint32_t word) : even(word), odd(word) {
    if constexpr (Bits == 4) {
      even = word << kShift & (0x0f0f0f0fu << kShift);
      odd = word >> (4 - kShift) & (0x0f0f0f0fu << kShift);
    }
  }
  DEVICE_FUNCTION uint32_t operator()(int e, uint32_t above) const {
    if constexpr (Bits == 4)
      return device::permute_bytes(e % 2 ? odd : even, above, 0x7650u + uint32_t(e / 2));
    const int at = e * Bits - kShift;
    return ((at < 0 ? even << -at : even >> at) & (7u << kShift)) | above;
  }
};

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
template <int Bits, int kLanes>
DEVICE_FUNCTION void centroid_rows(const Params& p, const std::byte* centroids, const Piece& piece,
                                   const bool (&active)[2], Row8 (&row)[2]) {
  float c[2][kGroup];
  float squares = 0;
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const Codes<Bits, 2> codes(piece.key[n][0]);  // offsets of floats
    float sum = 0;
    DEVICE_UNROLL
    for (int e = 0; e < kGroup; ++e) {
      c[n][e] = *reinterpret_cast<const float*>(centroids + codes(e, 0));
      sum = device::fma(c[n][e], c[n][e], sum);
    }
    if (active[n]) squares += sum;
  }
  float factor = piece.norm;
  if (p.norm_correction) {
    DEVICE_UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) squares += device::shuffle_xor(squares, mask);
    factor *= device::rsqrt_fast(squares + 1e-16f);
  }
  DEVICE_UNROLL
  for (int n = 0; n < 2; ++n) {
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i)
      row[n].pair[i] =
          device::pack_halves<device::f16>(factor * c[n][2 * i], factor * c[n][2 * i + 1]);
  }
}

template <int Bits>
DEVICE_FUNCTION Row8 value_row(const Params& p, const Piece& piece, int n) {
  const Codes<Bits, 0> codes(piece.value[n]);
  float x[kGroup];
  DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e) {
    const float number = device::bit_cast<float>(codes(e, p.magic)) - 8388608.0f;
    x[e] = device::fma(number, piece.scale, piece.zero);  // the product is exact: rounded once
  }
  Row8 row;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i)
    row.pair[i] = device::pack_halves<device::f16>(x[2 * i], x[2 * i + 1]);
  return row;
}

// Where an item lies.
struct Item {
  int row, chunk, head_chunk;
};
DEVICE_FUNCTION Item item_at(const Params& p, int index) {
  const int rest = p.head_chunk(index), row = p.chunk(rest);
  return {row, rest - row * p.chunks, index - rest * p.head_chunks};
}
DEVICE_FUNCTION int tokens_of(const Params& p, const Item& item) {
  return device::min(p.tokens - (item.chunk << p.tokens_log2), 1 << p.tokens_log2);
}
DEVICE_FUNCTION int heads_of(const Params& p, const Item& item) {
  return device::min(p.heads - item.head_chunk * p.item_heads, p.item_heads);
}

// The place of a lane's token in the cache, as far as its page: the id is loaded long before it is
// used.
struct Place {
  int64_t page;
  int in_page;
};
DEVICE_FUNCTION Place find_page(const Params& p, const Item& item) {
  if (item.row >= p.rows || device::lane() >= tokens_of(p, item)) return {-1, 0};
  const int token = (item.chunk << p.tokens_log2) + device::lane(), column = p.page(token);
  if (column >= p.table.columns) return {-1, 0};
  return {load_index(p.table.ids.data, p.table.ids.dtype,
                     item.row * p.table.ids.stride[0] + column * p.table.ids.stride[1]),
          token - column * int(p.cache.page)};
}
DEVICE_FUNCTION int64_t run_of(const Params& p, const Item& item, const Place& place) {
  if (place.page < 0 || place.page >= p.cache.blocks) return kMasked;
  return slot_offset(p.cache, place.page, place.in_page, item.head_chunk * p.item_heads);
}

// Brings the slots of an item into a stage; a lane has a token's run.
DEVICE_FUNCTION void fetch(const Params& p, const Item& item, int64_t run, uint8_t* stage) {
  const int count = tokens_of(p, item), heads = heads_of(p, item);
  DEVICE_ROLLED
  for (int t = 0; t < count; ++t) {
    const int64_t at = device::shuffle(run, t);
    if (at == kMasked) continue;
    const uint8_t* from = p.cache.data + at;
    uint8_t* to = stage + t * p.run_pitch;
    if (p.pieces16) {
      const int bytes = heads * p.slot;
      DEVICE_UNROLL
      for (int n = 0; n < 4; ++n) {
        const int i = (n * device::kWave + device::lane()) * 16;
        if (i < bytes) device::copy_async16(to + i, from + i, true);
      }
      for (int i = (4 * device::kWave + device::lane()) * 16; i < bytes; i += 16 * device::kWave)
        device::copy_async16(to + i, from + i, true);
    } else {
      DEVICE_ROLLED
      for (int h = 0; h < heads; ++h) {
        DEVICE_ROLLED
        for (int i = device::lane() * 2; i < p.slot; i += 2 * device::kWave)
          *reinterpret_cast<uint16_t*>(to + h * p.slot + i) =
              *reinterpret_cast<const uint16_t*>(from + h * p.cache.stride[2] + i);
      }
    }
  }
  device::copy_async_commit();
}

DEVICE_FUNCTION std::byte* bytes_of(const Strided<4>& t, int64_t at) {
  return static_cast<std::byte*>(t.data) + at * int64_t{sizeof(device::f16)};
}

// Zeros for an item's tokens that no page holds.
DEVICE_FUNCTION void clear_dead(const Params& p, std::byte* k, std::byte* v, int count, int heads,
                                device::LaneMask live) {
  const int row_bytes = p.format.head_dim * 2;
  for (int t = 0; t < count; ++t) {
    if (live >> t & 1) continue;
    DEVICE_ROLLED
    for (int h = 0; h < heads; ++h)
      DEVICE_ROLLED
      for (int i = device::lane() * 16; i < row_bytes; i += 16 * device::kWave) {
        device::store16(k + int64_t{h} * p.k_bytes[0] + int64_t{t} * p.k_bytes[1] + i, Row8{});
        device::store16(v + int64_t{h} * p.v_bytes[0] + int64_t{t} * p.v_bytes[1] + i, Row8{});
      }
  }
}

template <int KeyBits, int ValueBits, int kLanes>
DEVICE_KERNEL_BLOCKS(kThreads, kBlocks)
dequant_slots(Params p) {
  DEVICE_SHARED(float, centroids, 16);
  DEVICE_DYNAMIC_SHARED(uint8_t, stages);
  constexpr int kStep = device::kWave / kLanes;  // slots at a time
  const Item item = item_at(p, device::block_x() * kWaves + device::wave());
  const Place place = find_page(p, item);
  if constexpr (KeyBits < 8) {
    if (device::thread() < 1 << KeyBits)
      centroids[device::thread()] = p.centroids.data[device::thread() * p.centroids.stride];
  }
  uint8_t* const stage = device::data(stages) + device::wave() * p.stage_bytes;
  const int64_t run = run_of(p, item, place);
  const device::LaneMask live = device::ballot(run != kMasked);
  if (live != 0) fetch(p, item, run, stage);
  const int group = device::lane() % kLanes, groups = p.format.head_dim / kGroup;
  const bool active[2] = {group < groups, group + kLanes < groups};
  const int readable = active[0] ? group : 0, apart = active[1] ? kLanes : 0;
  const int count = tokens_of(p, item), heads = heads_of(p, item);
  const int head = item.head_chunk * p.item_heads, token = item.chunk << p.tokens_log2;
  std::byte* k_item =
      bytes_of(p.k, item.row * p.k.stride[0] + head * p.k.stride[1] + token * p.k.stride[2]);
  std::byte* v_item =
      bytes_of(p.v, item.row * p.v.stride[0] + head * p.v.stride[1] + token * p.v.stride[2]);
  device::copy_async_wait<0>();
  if constexpr (KeyBits < 8) device::sync_block();
  device::sync_wave();
  if (item.row >= p.rows) return;
  if (device::popcount(live) < count) clear_dead(p, k_item, v_item, count, heads, live);
  k_item += group * 16;
  v_item += group * 16;
  {
    const int slots = heads << p.tokens_log2;
    DEVICE_ROLLED
    for (int base = 0; base < slots; base += kStep) {
      const int slot = device::min(base + device::lane() / kLanes, slots - 1);
      const int h = slot >> p.tokens_log2, t = slot & ((1 << p.tokens_log2) - 1);
      const bool exists = (live >> t & 1) != 0;  // where not, garbage is computed
      const Piece piece = load_piece<KeyBits, ValueBits, kLanes>(
          p.format, stage + t * p.run_pitch + h * p.slot, readable, apart);
      Row8 k[2];
      const Row8 v[2] = {value_row<ValueBits>(p, piece, 0), value_row<ValueBits>(p, piece, 1)};
      if constexpr (KeyBits == 8) {
        k[0] = fp8_row(p.format.fp8, piece.key[0]);
        k[1] = fp8_row(p.format.fp8, piece.key[1]);
      } else {
        centroid_rows<KeyBits, kLanes>(p, reinterpret_cast<const std::byte*>(device::data(centroids)), piece, active, k);
      }
      std::byte* k_at = k_item + int64_t{h} * p.k_bytes[0] + int64_t{t} * p.k_bytes[1];
      std::byte* v_at = v_item + int64_t{h} * p.v_bytes[0] + int64_t{t} * p.v_bytes[1];
      DEVICE_UNROLL
      for (int n = 0; n < 2; ++n)
        if (exists && active[n]) {
          device::store16(k_at + n * kLanes * 16, k[n]);
          device::store16(v_at + n * kLanes * 16, v[n]);
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
    need(!f.fp8 || ((f.zero_at + 2) % 4 == 0 && f.value_at % 4 == 0), "slots of whole words");
    need_rows16(a.tensor("k"));
    need_rows16(a.tensor("v"));
    return 0;
  }
  template <int KeyBits, int ValueBits, int kLanes>
  static void launch(const Params& p, void* stream) {
    const int64_t blocks = (int64_t{p.items} + kWaves - 1) / kWaves;
    device::launch(dequant_slots<KeyBits, ValueBits, kLanes>,
                   device::Grid{blocks, 1, 1}, kThreads,
                   size_t(kWaves * p.stage_bytes), stream, p);
  }
  template <int KeyBits, int ValueBits>
  static void start(const Params& p, void* stream) {
    if (p.format.head_dim <= 64)
      launch<KeyBits, ValueBits, 4>(p, stream);
    else if (p.format.head_dim <= 128)
      launch<KeyBits, ValueBits, 8>(p, stream);
    else
      launch<KeyBits, ValueBits, 16>(p, stream);
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
    const int64_t heads = a.tensor("kv_cache").size(2), all_tokens = tokens(a);
    need(heads <= INT32_MAX && all_tokens <= INT32_MAX - 64 && p.cache.page <= INT32_MAX, "32-bit counts");
    for (const Strided<4>* t : {&p.k, &p.v})
      for (int i : {1, 2}) need(t->stride[i] * 2 == int(t->stride[i] * 2), "32-bit strides");
    p.heads = int(heads);
    p.tokens = int(all_tokens);
    p.slot = (p.format.zero_at + 2 + 1) / 2 * 2;
    p.item_heads = p.heads < kMostSlots ? p.heads : kMostSlots;
    p.tokens_log2 = 0;
    while ((2 << p.tokens_log2) * p.item_heads <= kMostSlots) ++p.tokens_log2;
    p.head_chunks = (p.heads + p.item_heads - 1) / p.item_heads;
    p.chunks = (p.tokens + (1 << p.tokens_log2) - 1) >> p.tokens_log2;
    const int64_t items =
        a.tensor("block_table").size(0) * int64_t{p.chunks} * p.head_chunks;
    if (items == 0) return;
    need(items <= INT32_MAX / 2, "32-bit items");
    p.items = int(items);
    const int run = p.item_heads * p.slot;
    p.run_pitch = (run + 15) / 16 * 16;
    p.stage_bytes = p.run_pitch << p.tokens_log2;
    p.pieces16 = (p.cache.stride[2] == p.slot || p.heads == 1) && run % 16 == 0 && (p.head_chunks == 1 || p.heads * p.slot % 16 == 0) &&
                 reinterpret_cast<uintptr_t>(p.cache.data) % 16 == 0 &&
                 p.cache.stride[0] % 16 == 0 && p.cache.stride[1] % 16 == 0;
    p.rows = int(a.tensor("block_table").size(0));
    p.page = Divider(uint32_t(p.cache.page));
    p.chunk = Divider(uint32_t(p.chunks));
    p.head_chunk = Divider(uint32_t(p.head_chunks));
    for (int i : {0, 1}) {
      p.k_bytes[i] = int(p.k.stride[1 + i] * 2);
      p.v_bytes[i] = int(p.v.stride[1 + i] * 2);
    }
    p.magic = 0x4b000000u;
    const bool three = p.format.value_bits == 3;
    if (p.format.fp8)
      three ? start<8, 3>(p, call.stream) : start<8, 4>(p, call.stream);
    else if (p.format.key_bits == 3)
      three ? start<3, 3>(p, call.stream) : start<3, 4>(p, call.stream);
    else
      three ? start<4, 3>(p, call.stream) : start<4, 4>(p, call.stream);
  }
};

DEVICE_OP(Dequant)

}  // namespace sm_80

}  // namespace tq::dequant
