// SPDX-License-Identifier: Apache-2.0
// tq.dequant where slots are 2-byte aligned and head sizes multiples of 16: a wave takes some
// tokens with all of their heads, which mostly lie together. It copies their bytes into shared
// memory as they are, and cuts the codes from there: 16 elements of a key and of its value a lane.
// Waves wait for their own bytes alone; many small blocks keep reads and writes mixed. dequant.md
// says why.
#include <algorithm>
#include <bit>

#include "device/launch.h"
#include "device/nvidia.h"
#include "device/op.h"
#include "tq/dequant.h"
#include "tq/dequant_rows.h"
#include "tq/slot_codes.h"

namespace tq::dequant {

namespace sm_80 {

inline constexpr int kThreads = 256, kWaves = kThreads / device::kWave;
inline constexpr int kBlocks = 5;      // of a multiprocessor
inline constexpr int kMostSlots = 16;  // of an item

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
  // An item is a number of tokens (a power of two) of some heads, mostly all.
  int items, rows, chunks, head_chunks, item_heads, tokens_log2;
  Divider page, chunk, head_chunk;
  int slot, run_pitch, stage_bytes;
  bool pieces16;               // runs of a token's heads are copied by 16 bytes
  int k_bytes[2], v_bytes[2];  // from head to head, from token to token
  uint32_t magic;              // 2^23 as a float: in a register, else an instruction has it twice
};

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

// The page of a lane's token. Its id is not looked at before other loads are under way.
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
    for (int h = 0; h < heads; ++h) DEVICE_ROLLED
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
  const int slots = heads << p.tokens_log2;
  DEVICE_ROLLED
  for (int base = 0; base < slots; base += kStep) {
    const int slot = device::min(base + device::lane() / kLanes, slots - 1);
    const int h = slot >> p.tokens_log2, t = slot & ((1 << p.tokens_log2) - 1);
    const bool exists = (live >> t & 1) != 0;  // where not, garbage is computed
    const Piece piece = load_piece<KeyBits, ValueBits>(
        p.format, stage + t * p.run_pitch + h * p.slot, readable, apart);
    Row8 k[2];
    const Row8 v[2] = {value_row<ValueBits>(piece, 0, p.magic),
                       value_row<ValueBits>(piece, 1, p.magic)};
    if constexpr (KeyBits == 8) {
      k[0] = fp8_row(p.format.fp8, piece.key[0]);
      k[1] = fp8_row(p.format.fp8, piece.key[1]);
    } else {
      centroid_rows<KeyBits, kLanes>(reinterpret_cast<const std::byte*>(device::data(centroids)),
                                     p.norm_correction, piece, active, k);
    }
    std::byte* const k_at = k_item + int64_t{h} * p.k_bytes[0] + int64_t{t} * p.k_bytes[1];
    std::byte* const v_at = v_item + int64_t{h} * p.v_bytes[0] + int64_t{t} * p.v_bytes[1];
    DEVICE_UNROLL
    for (int n = 0; n < 2; ++n)
      if (exists && active[n]) {
        device::store16(k_at + n * kLanes * 16, k[n]);
        device::store16(v_at + n * kLanes * 16, v[n]);
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
    for (int i : {1, 2})
      need(t.stride(i) == int32_t(t.stride(i)) && t.stride(i) * 2 == int32_t(t.stride(i) * 2),
           "outputs whose heads and tokens are less than 2 GiB apart");
  }
  // The rules; pointers are looked at in run() only where the query has none.
  static void need_all(const Args& a, const Cache& cache, const SlotFormat& f) {
    need(f.head_dim % 16 == 0 && f.head_dim <= 256,
         "a head size that is a multiple of 16, up to 256");
    need(cache.stride[3] == 1 && reinterpret_cast<uintptr_t>(cache.data) % 2 == 0 &&
             cache.stride[0] % 2 == 0 && cache.stride[1] % 2 == 0 && cache.stride[2] % 2 == 0 &&
             f.value_at % 2 == 0,
         "slots and values aligned to 2 bytes");
    need(!f.fp8 || ((f.zero_at + 2) % 4 == 0 && f.value_at % 4 == 0),
         "slots of fp8 keys that are whole words");
    need_rows16(a.tensor("k"));
    need_rows16(a.tensor("v"));
    need(a.tensor("kv_cache").size(2) <= INT32_MAX / 512 && cache.page <= INT32_MAX &&
             tokens(a) <= INT32_MAX - kMostSlots,
         "counts of heads and tokens in 32 bits");
  }
  static Params params(const Args& a) {
    Params p{};
    p.cache = cache_of(a);
    p.table = page_table(a);
    p.format = slot_format(a, head_dim(a));
    p.centroids = codebook(a, p.format);
    p.norm_correction = a.boolean("norm_correction");
    p.k = strided<4>(a.tensor("k"));
    p.v = strided<4>(a.tensor("v"));
    need_all(a, p.cache, p.format);
    p.heads = int(a.tensor("kv_cache").size(2));
    p.tokens = int(tokens(a));
    p.slot = p.format.zero_at + 2;
    p.item_heads = std::min(p.heads, kMostSlots);
    while ((2 << p.tokens_log2) * p.item_heads <= kMostSlots) ++p.tokens_log2;
    p.head_chunks = (p.heads + p.item_heads - 1) / p.item_heads;
    p.chunks = (p.tokens + (1 << p.tokens_log2) - 1) >> p.tokens_log2;
    p.rows = int(a.tensor("block_table").size(0));
    const int64_t items = a.tensor("block_table").size(0) * p.chunks * p.head_chunks;
    need(items <= INT32_MAX / 2, "fewer than 2^30 groups of tokens");
    p.items = int(items);
    const int run = p.item_heads * p.slot;
    p.run_pitch = (run + 15) / 16 * 16;
    p.stage_bytes = p.run_pitch << p.tokens_log2;
    p.pieces16 = (p.cache.stride[2] == p.slot || p.heads == 1) && run % 16 == 0 &&
                 p.heads * p.slot % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(p.cache.data) % 16 == 0 &&
                 p.cache.stride[0] % 16 == 0 && p.cache.stride[1] % 16 == 0;
    p.page = Divider(uint32_t(p.cache.page));
    p.chunk = Divider(uint32_t(std::max(p.chunks, 1)));
    p.head_chunk = Divider(uint32_t(p.head_chunks));
    for (int i : {0, 1}) {
      p.k_bytes[i] = int(p.k.stride[1 + i] * 2);
      p.v_bytes[i] = int(p.v.stride[1 + i] * 2);
    }
    p.magic = 0x4b000000u;
    return p;
  }
  static uint64_t workspace(const toolkit::Args& a) {
    params(a);
    return 0;
  }
  template <int KeyBits, int ValueBits, int kLanes>
  static void launch(const Params& p, void* stream) {
    const size_t shared = size_t(kWaves * p.stage_bytes);
    constexpr size_t kKept = 2048;  // of the kernel's own and the system's
    need(shared + kKept <= size_t(device::shared_bytes_of_block()), "more shared memory");
    device::launch(dequant_slots<KeyBits, ValueBits, kLanes>,
                   device::Grid{(int64_t{p.items} + kWaves - 1) / kWaves, 1, 1}, kThreads, shared,
                   stream, p);
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
    const Params p = params(call.args);
    if (p.items == 0) return;
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
