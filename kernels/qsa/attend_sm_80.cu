// SPDX-License-Identifier: Apache-2.0
// qsa.attend on NVIDIA GPUs: matrix instructions fed by rings of asynchronous gathers. One block a
// (row, KV head, split of the listed tokens), for all query heads of the KV head; each wave takes
// its own share of the tokens, with a ring, softmax and output of its own, and meets the others
// only at the end.
//
// A tile is 16 tokens. Q K^T has the heads as rows (padded to 16) and the tokens as columns, so
// that the weights lie in the registers of a lane as P V wants them. The ring holds tiles of keys
// and values in turn; whatever tile has been used makes room for the one kSlots behind it.
// Statistics are fp32, weights q's dtype (their sum is taken before they are rounded). A score that
// is not finite makes its weight NaN, and with it the head.
#include <atomic>
#include <cmath>
#include <random>

#include "device/nvidia.h"
#include "qsa/attend.h"
#include "qsa/attend_union.h"

namespace qsa {
namespace {

using Chunk = Pack<uint32_t>;  // 16 bytes, eight elements
using Four = Pack<float>;

constexpr int kHeads = 16;                     // of a KV head at most: rows of the instruction
constexpr int kTile = 16;                      // tokens
constexpr int kTiles = device::kWave / kTile;  // that a wave looks up at once
constexpr int kWavesOfProcessor = 8;           // the output takes half of the registers
constexpr int kMaxSplits = 128;
constexpr int kMergedInPlace = 4;  // splits; more are merged by a second launch
constexpr float kSlack = 8;        // a weight may be up to 2^8 before all sums are rescaled

struct Statistics {
  float top, total;  // what scores are relative to; sum of the weights, NaN where the head is
};

struct Plan {
  int kv_heads, group;  // query heads of a KV head
  int splits;
  int64_t split_tokens;
  uint32_t key_page, key_token, value_page, value_token;  // strides of the caches, in chunks
  float scale;                                            // D^-0.5 * log2(e)
  bool packed_output;      // four neighbours of the output may be stored at once
  int waves;               // of a block
  bool heads_apart;        // all rows of a KV head before those of the next
  bool merge_launch;       // partial results are merged by a second launch, else by the last block
  float* partial;          // [R*Hkv, splits, group, D], sums of weighted values; null: one split
  Statistics* statistics;  // [R*Hkv, splits, group]
  uint64_t* arrivals;      // [R*Hkv]: tag + blocks that are done
  uint64_t tag;            // of this call; its low bits are zeros
};

template <int kDims, int kWaves, int kSlots, bool kFew>
struct Layout {
  static constexpr int kRow = kDims / 8;                 // chunks of a token
  static constexpr int kSlot = kTile * kRow;             // chunks
  static constexpr int kRings = (kFew ? 8 : 16) * kRow;  // behind the queries
  static constexpr int kStatistics = kRings + kWaves * kSlots * kSlot;
  static constexpr int kPlaces = kStatistics + kWaves * kHeads / 2;
  static constexpr int kPlacesOfWave = 2 * device::kWave / 4;  // of keys, then of values
  static constexpr int kChunks = kPlaces + kWaves * kPlacesOfWave;
  static constexpr int kPitch = kDims + 8;  // floats of a head's output; other banks for each
  static_assert(kHeads * kPitch <= kSlots * kSlot * 4, "a wave's output replaces its ring");
};

// Chunk c of token t (or head) stands at c ^ swizzle(t): eight tokens' chunks c lie in eight bank
// groups (values, read down the tokens), and so do four chunks of two neighbours (keys, queries).
DEVICE_FUNCTION int swizzle(int token) { return (token & 1) << 2 | (token >> 1 & 3); }

// An id; -1 where it is beyond 32 bits, which none that is in use can be. Not looked at here, so
// that the load does not have to be waited for.
template <int kRank, class... Index>
DEVICE_FUNCTION int32_t load_id(const Tensor<kRank>& t, Index... index) {
  const int64_t at = offset_of(t, index...);
  if (t.dtype != TK_I64) return static_cast<const int32_t*>(t.data)[at];
  const int64_t id = static_cast<const int64_t*>(t.data)[at];
  return id == int32_t(id) ? int32_t(id) : -1;
}

// The tokens of one wave, two tiles at once: lane kTile * i + j has token j of tile i. Index, page
// and keys depend on each other, so each is loaded two tiles before the next.
struct Lookup {
  int32_t token;          // four tiles ahead
  int32_t page, place;    // two tiles ahead; the page as the table has it
  device::LaneMask live;  // of these two tiles

  int64_t column, end;
  int row, request;

  DEVICE_FUNCTION void next_token(const AttendParams& p) {
    token = column < end ? load_id(p.tokens, row, column) : -1;
    column += device::kWave;
  }
  DEVICE_FUNCTION void next_page(const AttendParams& p) {
    const uint32_t size = uint32_t(p.k_cache.size[1]), at = uint32_t(token) / size;
    place = int32_t(uint32_t(token) - at * size);
    page = token >= 0 && at < p.block_table.size[1] ? load_id(p.block_table, request, at) : -1;
  }
  // To `places`: the chunks from the cache's first to these two tiles' keys and to their values.
  DEVICE_FUNCTION void next_tiles(const AttendParams& p, const Plan& plan, uint32_t* places) {
    const bool ok = page >= 0 && page < p.k_cache.size[0];
    device::sync_wave();  // all lanes have read the places before
    places[device::lane()] = ok ? page * plan.key_page + place * plan.key_token : 0;
    places[device::kWave + device::lane()] =
        ok ? page * plan.value_page + place * plan.value_token : 0;
    live = device::ballot(ok);
    device::sync_wave();
    next_page(p);
    next_token(p);
  }
};

// A tile of rows. `from` is this lane's chunk of the cache's first token, `places` and `live` have
// the tile's tokens. All addresses come first: copies that wait for theirs wait for each other.
template <int kRow>
DEVICE_FUNCTION void copy_tile(Chunk* to, const Chunk* from, const Chunk* places, uint32_t live,
                               uint64_t policy) {
  constexpr int kCopies = kTile * kRow / device::kWave;
  const int chunk = device::lane() % kRow, first = device::lane() / kRow * kCopies;
  uint32_t place[kCopies];
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; i += 4) {
    const Chunk four = places[(first + i) / 4];
    DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) place[i + e] = four.x[e];
  }
  const Chunk* source[kCopies];
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; ++i) source[i] = from + place[i];
  const uint32_t own = live >> first;
  Chunk* const row = to + first * kRow;
  DEVICE_UNROLL
  for (int i = 0; i < kCopies; ++i)
    device::copy_async16(row + i * kRow + (chunk ^ swizzle(i)), source[i], own >> i & 1, policy);
}

template <class T>
DEVICE_FUNCTION void store_four(const AttendParams& p, const Plan& plan, int row, int head, int dim,
                                const Four& v, float factor) {
  T* const to = element<T>(p.output, row, head, dim);
  if (plan.packed_output) {
    *reinterpret_cast<Pack<uint32_t, 8>*>(to) = {
        device::pack_halves<T>(v.x[0] * factor, v.x[1] * factor),
        device::pack_halves<T>(v.x[2] * factor, v.x[3] * factor)};
  } else {
    for (int e = 0; e < 4; ++e) to[e * p.output.stride[2]] = device::from_float<T>(v.x[e] * factor);
  }
}

DEVICE_FUNCTION void store_lse(const AttendParams& p, int row, int head, float top, float total) {
  if (p.lse.data)
    *element<float>(p.lse, row, head) =
        total == 0.0f ? -device::infinity() : top + device::log2(total);
}

DEVICE_FUNCTION float inverse(float total) {
  return total == 0.0f ? 0.0f : device::divide(1.0f, total);
}

// Of a part among others, the largest of which is relative to `top`. One without live tokens has
// no say, whatever it is relative to.
DEVICE_FUNCTION float weight_of(const Statistics& part, float top) {
  return part.total == 0.0f ? 0.0f : device::exp2_fast(part.top - top);
}

DEVICE_FUNCTION void add(Four& sum, const Four& v, float weight) {
  DEVICE_UNROLL
  for (int e = 0; e < 4; ++e) sum.x[e] = device::fma(v.x[e], weight, sum.x[e]);
}

// kFew: at most eight heads, so the lower half of all rows is padding.
template <class T, int kDims, int kWaves, int kSlots, bool kFew>
DEVICE_KERNEL_BLOCKS(kWaves* device::kWave, kWavesOfProcessor / kWaves)
attend_kernel(AttendParams p, Plan plan) {
  using At = Layout<kDims, kWaves, kSlots, kFew>;
  constexpr int kThreads = kWaves * device::kWave;
  constexpr int kRow = At::kRow;
  constexpr int kHalves = kFew ? 1 : 2;  // of the rows: heads 0-7 and 8-15
  constexpr int kAhead = kSlots / 2;     // tiles
  static_assert(kSlots % 2 == 1,
                "behind a tile of keys, values are copied, and the other way round");
  DEVICE_DYNAMIC_SHARED(Chunk, shared);
  Chunk* const queries = device::data(shared);

  const int lane = device::lane(), wave = device::wave(), thread = device::thread();
  const int group = lane / 4, member = lane % 4;  // of the fragments
  Chunk* const ring = queries + At::kRings + wave * kSlots * At::kSlot;
  int unit = device::block_x();
  const int split = unit % plan.splits;
  unit /= plan.splits;
  const int rows = int(p.q.size[0]);
  const int kv_head = plan.heads_apart ? unit / rows : unit % plan.kv_heads;
  const int row = plan.heads_apart ? unit % rows : unit / plan.kv_heads;
  unit = row * plan.kv_heads + kv_head;
  if (p.served && p.served[unit]) return;
  const int first_head = kv_head * plan.group;

  Chunk* const places = queries + At::kPlaces + wave * At::kPlacesOfWave;
  Chunk* const value_places = places + device::kWave / 4;

  // Each token is read once a row; what else the L2 holds is worth more, and dirty lines would
  // have to be written back to make room.
  const uint64_t policy = device::l2_evict_first();
  Lookup lookup;
  lookup.row = row;
  const int64_t first = split * plan.split_tokens;
  const int64_t end = smaller(p.tokens.size[1], first + plan.split_tokens);
  const int64_t share = (end - first + kWaves - 1) / kWaves;
  const int64_t own_first = first + wave * share;
  lookup.end = smaller(end, own_first + share);
  lookup.column = own_first + lane;
  lookup.next_token(p);
  lookup.request = load_id(p.token_to_req, row);
  uint64_t arrived = 0;
  const bool counts = plan.splits > 1 && !plan.merge_launch && thread == 0;
  if (counts) arrived = device::atomic_or(&plan.arrivals[unit], 0);

  // The inner dimension of a product may be permuted. A lane's chunk 4 j + member gives it the
  // dimensions of two instructions, of keys and of queries alike.
  for (int i = thread; i < kHalves * 8 * kRow; i += kThreads) {
    const int head = i / kRow, chunk = i % kRow;
    const bool real = head < plan.group;
    device::copy_async16(queries + head * kRow + (chunk ^ swizzle(head)),
                         element<const T>(p.q, row, first_head + (real ? head : 0), chunk * 8),
                         real);
  }

  const bool valid = lookup.request >= 0 && lookup.request < p.block_table.size[0];
  const int tiles =
      valid && lookup.end > own_first ? int((lookup.end - own_first + kTile - 1) / kTile) : 0;
  if (!valid) lookup.request = 0, lookup.end = 0, lookup.token = -1;
  lookup.next_page(p);
  lookup.next_token(p);
  lookup.next_tiles(p, plan, places[0].x);

  const Chunk* const keys =
      reinterpret_cast<const Chunk*>(element<const T>(p.k_cache, 0, 0, kv_head, lane % kRow * 8));
  const Chunk* const values =
      reinterpret_cast<const Chunk*>(element<const T>(p.v_cache, 0, 0, kv_head, lane % kRow * 8));
  uint64_t live_tiles = 0;  // kTile bits a tile of keys, the latest one lowest
  DEVICE_UNROLL
  for (int tile = 0; tile <= kAhead; ++tile) {
    const int first_lane = tile % kTiles * kTile;
    if (tile > 0 && first_lane == 0) lookup.next_tiles(p, plan, places[0].x);
    if (tile < tiles)
      copy_tile<kRow>(ring + 2 * tile * At::kSlot, keys, places + first_lane / 4,
                      lookup.live >> first_lane, policy);
    live_tiles = live_tiles << kTile | (lookup.live >> first_lane & 0xffff);
    device::copy_async_commit();
    if (tile == kAhead) break;
    if (tile < tiles)
      copy_tile<kRow>(ring + (2 * tile + 1) * At::kSlot, values, value_places + first_lane / 4,
                      lookup.live >> first_lane, policy);
    device::copy_async_commit();
  }
  // The count of done blocks begins with this call's tag. The workspace holds anything before the
  // first run, and the count of the last replay of a graph (which ends as it began) thereafter.
  if (counts && arrived - plan.tag >= uint64_t(plan.splits))
    device::atomic_cas(&plan.arrivals[unit], arrived, plan.tag);
  device::copy_async_wait<kSlots - 1>();  // the queries, in the first group
  device::sync_block();

  float top[kHalves], total[kHalves];  // what weights are relative to; their sum, of this lane
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    top[half] = -device::infinity();
    total[half] = 0.0f;
  }
  float output[kRow][4] = {};

  int slot = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    Chunk* const key = ring + slot * At::kSlot;
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    Chunk* const value = ring + slot * At::kSlot;
    slot = slot + 1 == kSlots ? 0 : slot + 1;

    device::copy_async_wait<kSlots - 1>();
    device::sync_wave();
    float dot[2][2][4] = {};  // of eight tokens; two sums each, so that they wait less
    DEVICE_UNROLL
    for (int j = 0; j < kRow / 4; ++j) {
      const int at = (4 * j + member) ^ swizzle(group);
      const Chunk high = queries[group * kRow + at];
      const Chunk low = kFew ? Chunk{} : queries[(group + 8) * kRow + at];
      DEVICE_UNROLL
      for (int octet = 0; octet < 2; ++octet) {
        const Chunk k = key[(octet * 8 + group) * kRow + at];
        device::multiply_16x8x16<T>(dot[octet][0], {high.x[0], low.x[0], high.x[1], low.x[1]},
                                    {k.x[0], k.x[1]});
        device::multiply_16x8x16<T>(dot[octet][1], {high.x[2], low.x[2], high.x[3], low.x[3]},
                                    {k.x[2], k.x[3]});
      }
    }
    device::sync_wave();  // all lanes have read the keys
    const uint32_t live = uint32_t(live_tiles >> kAhead * kTile);
    const int value_lane = (tile + kAhead) % kTiles * kTile;
    if (tile + kAhead < tiles)
      copy_tile<kRow>(key, values, value_places + value_lane / 4, lookup.live >> value_lane,
                      policy);
    device::copy_async_commit();

    uint32_t weights[4];
    float weight[kHalves][2][2];  // scores, then weights
    bool grown = false;
    float most[kHalves];
    DEVICE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      most[half] = -device::infinity();
      DEVICE_UNROLL
      for (int octet = 0; octet < 2; ++octet) {
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float sum = dot[octet][0][2 * half + e] + dot[octet][1][2 * half + e];
          // A score that is not finite makes the head NaN; -inf would silently drop the token.
          const bool finite = device::abs(sum) < device::infinity();
          const bool masked = !(live >> (octet * 8 + 2 * member + e) & 1);
          const float score = masked   ? -device::infinity()
                              : finite ? sum * plan.scale
                                       : device::nan();
          weight[half][octet][e] = score;
          most[half] = device::max(most[half], score);
        }
      }
      grown = grown || most[half] > top[half] + kSlack;
    }
    if (device::any(grown)) {
      DEVICE_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        most[half] = device::max(most[half], device::shuffle_xor(most[half], 1));
        most[half] = device::max(most[half], device::shuffle_xor(most[half], 2));
        const float now = device::max(top[half], most[half]);
        const float rescale = now == top[half] ? 1.0f : device::exp2_fast(top[half] - now);
        top[half] = now;
        total[half] *= rescale;
        DEVICE_UNROLL
        for (int n = 0; n < kRow; ++n) {
          output[n][2 * half] *= rescale;
          output[n][2 * half + 1] *= rescale;
        }
      }
    }
    weights[1] = weights[3] = 0;
    DEVICE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      DEVICE_UNROLL
      for (int octet = 0; octet < 2; ++octet) {
        DEVICE_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& w = weight[half][octet][e];
          w = w == -device::infinity() ? 0.0f : device::exp2_fast(w - top[half]);
          total[half] += w;
        }
        weights[octet * 2 + half] =
            device::pack_halves<T>(weight[half][octet][0], weight[half][octet][1]);
      }
    }

    device::copy_async_wait<kSlots - 1>();
    device::sync_wave();
    const int matrix = lane / 8, line = lane % 8;
    const Chunk* const token = value + (matrix % 2 * 8 + line) * kRow;
    DEVICE_UNROLL
    for (int n = 0; n < kRow; n += 2) {
      uint32_t v[4];
      device::load_matrices_transposed(v, token + ((n + matrix / 2) ^ swizzle(line)));
      device::multiply_16x8x16<T>(output[n], weights, {v[0], v[1]});
      device::multiply_16x8x16<T>(output[n + 1], weights, {v[2], v[3]});
    }
    device::sync_wave();  // all lanes have read the values
    const int next = tile + kAhead + 1, first_lane = next % kTiles * kTile;
    if (next < tiles) {
      if (first_lane == 0) lookup.next_tiles(p, plan, places[0].x);
      copy_tile<kRow>(value, keys, places + first_lane / 4, lookup.live >> first_lane, policy);
    }
    live_tiles = live_tiles << kTile | (lookup.live >> first_lane & 0xffff);
    device::copy_async_commit();
  }
  device::copy_async_wait<0>();
  device::sync_wave();

  // The waves' results meet in shared memory. One output that is not finite makes its head NaN: it
  // enters the sum of the weights.
  float* const own = reinterpret_cast<float*>(ring);  // [kHeads][kPitch]
  Statistics* const of_waves = reinterpret_cast<Statistics*>(queries + At::kStatistics);
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    const int head = half * 8 + group;
    DEVICE_UNROLL
    for (int n = 0; n < kRow; ++n) {
      const float a = output[n][2 * half], b = output[n][2 * half + 1];
      if (!(device::abs(a) < device::infinity() && device::abs(b) < device::infinity()))
        total[half] = device::nan();
      *reinterpret_cast<Pack<float, 8>*>(own + head * At::kPitch + n * 8 + member * 2) = {a, b};
    }
    total[half] += device::shuffle_xor(total[half], 1);
    total[half] += device::shuffle_xor(total[half], 2);
    if (member == 0) of_waves[wave * kHeads + head] = {top[half], total[half]};
  }
  device::sync_block();

  constexpr int kQuads = kDims / 4;  // of a head's output
  const int64_t at_split = (int64_t(unit) * plan.splits + split) * plan.group;
  for (int i = thread; i < plan.group * kQuads; i += kThreads) {
    const int head = i / kQuads, dim = i % kQuads * 4;
    Statistics all{-device::infinity(), 0.0f};
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w)
      all.top = device::max(all.top, of_waves[w * kHeads + head].top);
    Four sum{};
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w) {
      const Statistics part = of_waves[w * kHeads + head];
      const float factor = weight_of(part, all.top);
      all.total = device::fma(part.total, factor, all.total);
      const float* const of_wave =
          reinterpret_cast<const float*>(queries + At::kRings + w * kSlots * At::kSlot);
      add(sum, *reinterpret_cast<const Four*>(of_wave + head * At::kPitch + dim), factor);
    }
    if (plan.splits > 1) {
      *reinterpret_cast<Four*>(plan.partial + (at_split + head) * kDims + dim) = sum;
      if (dim == 0) plan.statistics[at_split + head] = all;
    } else {
      store_four<T>(p, plan, row, first_head + head, dim, sum, inverse(all.total));
      if (dim == 0) store_lse(p, row, first_head + head, all.top, all.total);
    }
  }
  if (plan.splits == 1 || plan.merge_launch) return;

  // The last block of this row and KV head merges all, in the order of the splits.
  DEVICE_SHARED(int, is_last, 1);
  device::sync_block();
  if (thread == 0) {
    device::fence();
    const uint64_t before = device::atomic_add(&plan.arrivals[unit], 1);
    is_last[0] = before - plan.tag + 1 == uint64_t(plan.splits);
    if (is_last[0]) device::atomic_exchange(&plan.arrivals[unit], plan.tag);
    device::fence();
  }
  device::sync_block();
  if (!is_last[0]) return;
  Statistics* const parts = reinterpret_cast<Statistics*>(queries);  // [splits][group]
  const int64_t base = int64_t(unit) * plan.splits * plan.group;
  for (int i = thread; i < plan.splits * plan.group; i += kThreads)
    parts[i] = plan.statistics[base + i];
  device::sync_block();
  // All of a thread's loads of two splits come before their sums: one alone would wait for memory
  // each time.
  constexpr int kMine = (kHalves * 8 * kQuads + kThreads - 1) / kThreads;
  const float* from[kMine];
  float tops[kMine], totals[kMine];
  Four sums[kMine];
  DEVICE_UNROLL
  for (int m = 0; m < kMine; ++m) {
    const int i = thread + m * kThreads, head = device::min(i / kQuads, plan.group - 1);
    from[m] = plan.partial + (base + head) * kDims + i % kQuads * 4;
    tops[m] = -device::infinity();
    for (int s = 0; s < plan.splits; ++s)
      tops[m] = device::max(tops[m], parts[s * plan.group + head].top);
    totals[m] = 0.0f;
    sums[m] = Four{};
  }
  for (int s = 0; s < plan.splits; s += 2) {
    const int64_t second = s + 1 < plan.splits ? int64_t(plan.group) * kDims : 0;
    Four of[2][kMine];
    DEVICE_UNROLL
    for (int m = 0; m < kMine; ++m) {
      of[0][m] = *reinterpret_cast<const Four*>(from[m]);
      of[1][m] = *reinterpret_cast<const Four*>(from[m] + second);
      from[m] += 2 * second;
    }
    DEVICE_UNROLL
    for (int m = 0; m < kMine; ++m) {
      const int head = device::min((thread + m * kThreads) / kQuads, plan.group - 1);
      DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        if (s + e >= plan.splits) continue;
        const Statistics part = parts[(s + e) * plan.group + head];
        const float factor = weight_of(part, tops[m]);
        totals[m] = device::fma(part.total, factor, totals[m]);
        add(sums[m], of[e][m], factor);
      }
    }
  }
  DEVICE_UNROLL
  for (int m = 0; m < kMine; ++m) {
    const int i = thread + m * kThreads, head = i / kQuads, dim = i % kQuads * 4;
    if (head >= plan.group) continue;
    store_four<T>(p, plan, row, first_head + head, dim, sums[m], inverse(totals[m]));
    if (dim == 0) store_lse(p, row, first_head + head, tops[m], totals[m]);
  }
}

constexpr int kThreads = kMaxSplits;  // of a merge: one a split
// One block a (row, head, kMergeDims dimensions). All partial results are loaded at once.
template <class T, int kMergeDims, int kPerSlice>
DEVICE_KERNEL(kThreads)
merge_splits_kernel(AttendParams p, Plan plan) {
  constexpr int kMergeQuads = kMergeDims / 4;      // threads beside each other
  constexpr int kSlices = kThreads / kMergeQuads;  // splits at once
  DEVICE_SHARED(float, scratch, 32);
  DEVICE_SHARED(float, weights, kMaxSplits);
  DEVICE_SHARED(Four, sums, kThreads);
  const int dims = int(p.q.size[2]), parts = dims / kMergeDims, heads = plan.kv_heads * plan.group;
  int block = device::block_x();
  const int part = block % parts;
  block /= parts;
  const int head = block % heads, row = block / heads;
  const int64_t unit = int64_t(row) * plan.kv_heads + head / plan.group;
  const int64_t first = unit * plan.splits * plan.group + head % plan.group;  // of split 0
  const int thread = device::thread(), slice = thread / kMergeQuads, quad = thread % kMergeQuads;

  const float* const from = plan.partial + first * dims + part * kMergeDims + quad * 4;
  Statistics of{-device::infinity(), 0.0f};
  if (thread < plan.splits) of = plan.statistics[first + int64_t(thread) * plan.group];
  Four ahead[kPerSlice];
  DEVICE_UNROLL
  for (int i = 0; i < kPerSlice; ++i) {
    const int s = i * kSlices + slice;
    if (s < plan.splits)
      ahead[i] = *reinterpret_cast<const Four*>(from + int64_t(s) * plan.group * dims);
  }
  const float top = device::block_max(of.top, scratch);
  const float weight = weight_of(of, top);
  weights[thread] = weight;
  const float total = device::block_sum(of.total * weight, scratch);
  device::sync_block();
  Four sum{};
  DEVICE_UNROLL
  for (int i = 0; i < kPerSlice; ++i) {
    const int s = i * kSlices + slice;
    if (s >= plan.splits) continue;
    add(sum, ahead[i], weights[s]);
  }
  sums[thread] = sum;
  device::sync_block();
  if (thread < kMergeQuads) {
    Four all{};
    for (int s = 0; s < kSlices; ++s) add(all, sums[s * kMergeQuads + thread], 1.0f);
    store_four<T>(p, plan, row, head, part * kMergeDims + thread * 4, all, inverse(total));
  }
  if (thread == 0 && part == 0) store_lse(p, row, head, top, total);
}

// ---- host ----

constexpr uint64_t kCountBits = 16;

// A number that no other call has, above a count of blocks.
uint64_t fresh_tag() {
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return next.fetch_add(0x9e3779b97f4a7c15u) << kCountBits;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int kDims>
constexpr int kSlotsOf = kDims == 256 ? 3 : 5;

// With room for 16 query heads.
size_t shared_bytes(int64_t dims, int waves) {
  const int chunks = dims == 256 ? (waves == 8 ? Layout<256, 8, kSlotsOf<256>, false>::kChunks
                                               : Layout<256, 4, kSlotsOf<256>, false>::kChunks)
                                 : (waves == 8 ? Layout<128, 8, kSlotsOf<128>, false>::kChunks
                                               : Layout<128, 4, kSlotsOf<128>, false>::kChunks);
  return chunks * sizeof(Chunk);
}

// Waves of a block and splits of a row. A model of the time in microseconds with the rates of an
// H200; other devices differ in all of them alike. Blocks that run together share the memory's
// rate, and one alone cannot use all of it; a block begins with three dependent loads.
void choose_blocks(Plan& plan, int64_t units, int64_t tokens, int64_t dims, bool whole_rows) {
  constexpr int64_t kReserved = 1024;  // shared memory that each block costs besides its own
  const int64_t processors = device::multiprocessors();
  const int64_t room = device::shared_bytes_of_block() + kReserved;
  const double token_kb = double(dims) * 4 / 1024;
  double best = 0;
  for (const int waves : {4, 8}) {
    const int64_t fit = std::min<int64_t>(
        kWavesOfProcessor / waves, room / (int64_t(shared_bytes(dims, waves)) + 2 * kReserved));
    if (fit == 0) continue;
    const int64_t most_splits = whole_rows   ? 1
                                : waves == 8 ? kMergedInPlace
                                             : std::min<int64_t>(kMaxSplits, divide_up(tokens, 32));
    for (int64_t splits = 1; splits <= most_splits; ++splits) {
      const int64_t each = divide_up(tokens, splits);
      if (divide_up(tokens, each) != splits) continue;
      const int64_t blocks = std::max<int64_t>(1, units * splits), at_once = processors * fit;
      const double rate = std::min(waves == 8 ? 45.0 : 27.0,
                                   30.0 * double(processors) / double(std::min(blocks, at_once)));
      const double merge = splits == 1                ? 0
                           : splits <= kMergedInPlace ? 3 + 0.5 * double(splits)
                                                      : 4.5 + 0.1 * double(splits);
      const double time =
          double(divide_up(blocks, at_once)) * (5 + double(each) * token_kb / rate) + merge;
      if (plan.splits != 0 && time >= best) continue;
      best = time;
      plan.waves = waves;
      plan.splits = int(splits);
      plan.split_tokens = each;
    }
  }
  if (plan.splits == 0)
    throw device::Unsupported("a block needs " + std::to_string(shared_bytes(dims, 4)) +
                              " bytes of shared memory and may have " +
                              std::to_string(device::shared_bytes_of_block()) + " on this device");
  plan.merge_launch = plan.splits > kMergedInPlace;
}

// A stride in chunks. All tokens have to lie within 2^32 chunks (64 GiB) behind the first one.
uint32_t chunks_of(const Tensor<4>& cache, int dim) {
  int64_t reach = 0;
  for (int d = 0; d < 2; ++d) {
    if (cache.size[d] > 1 && cache.stride[d] < 0)
      throw device::Unsupported("k_cache or v_cache has a negative stride");
    if (cache.size[d] > 1) reach += (cache.size[d] - 1) * (cache.stride[d] / 8);
  }
  if (reach > UINT32_MAX)
    throw device::Unsupported("the pages of k_cache or v_cache are spread over more than 64 GiB");
  return cache.size[dim] > 1 ? uint32_t(cache.stride[dim] / 8) : 0;
}

// The same for the workspace query (no addresses yet) and for the run.
Plan make_plan(const AttendParams& p, device::Carver& carver) {
  const int64_t rows = p.q.size[0], heads = p.q.size[1], dims = p.q.size[2];
  const int64_t kv_heads = p.k_cache.size[2], group = heads / kv_heads;
  if (dims != 128 && dims != 256)
    throw device::Unsupported("the head dimension is " + std::to_string(dims) +
                              ": this kernel takes 128 and 256");
  if (group > kHeads)
    throw device::Unsupported("a KV head has " + std::to_string(group) +
                              " query heads: this kernel takes up to 16");
  if (!dense_runs(p.q, 16) || !dense_runs(p.k_cache, 16) || !dense_runs(p.v_cache, 16))
    throw device::Unsupported(
        "the heads of q, k_cache or v_cache are not dense or not aligned to 16 bytes");
  if (p.k_cache.size[0] > INT32_MAX || p.k_cache.size[1] > INT32_MAX ||
      p.block_table.size[1] > INT32_MAX / p.k_cache.size[1])
    throw device::Unsupported("a block table that spans more than 2^31 tokens");
  Plan plan{};
  plan.kv_heads = int(kv_heads);
  plan.group = int(group);
  plan.scale = float(1.4426950408889634 / std::sqrt(double(dims)));
  // Many rows of a request share tokens: half of them at a time may stay in the L2.
  plan.heads_apart = rows > 8 * p.block_table.size[0];
  plan.packed_output = dense_runs(p.output, 8);
  plan.key_page = chunks_of(p.k_cache, 0);
  plan.key_token = chunks_of(p.k_cache, 1);
  plan.value_page = chunks_of(p.v_cache, 0);
  plan.value_token = chunks_of(p.v_cache, 1);
  const int64_t units = rows * kv_heads;
  choose_blocks(plan, units, p.tokens.size[1], dims, p.served != nullptr);
  blocks(units * plan.splits);  // refuses more than fit a grid
  if (plan.splits > 1) {
    plan.partial = carver.take<float>(uint64_t(units * plan.splits * group * dims));
    plan.statistics = carver.take<Statistics>(uint64_t(units * plan.splits * group));
    plan.arrivals = carver.take<uint64_t>(uint64_t(units));
  }
  return plan;
}

template <class T, int kDims, int kWaves, int kSlots, bool kFew>
void launch_kernel(const AttendParams& p, const Plan& plan, void* stream) {
  device::launch(attend_kernel<T, kDims, kWaves, kSlots, kFew>,
                 blocks(p.q.size[0] * plan.kv_heads * plan.splits), kWaves * device::kWave,
                 Layout<kDims, kWaves, kSlots, kFew>::kChunks * sizeof(Chunk), stream, p, plan);
}

template <class T, int kDims>
void launch_kernels(const AttendParams& p, const Plan& plan, void* stream) {
  constexpr int kSlots = kSlotsOf<kDims>;
  const bool few = plan.group <= 8;
  if (plan.waves == 8)
    few ? launch_kernel<T, kDims, 8, kSlots, true>(p, plan, stream)
        : launch_kernel<T, kDims, 8, kSlots, false>(p, plan, stream);
  else
    few ? launch_kernel<T, kDims, 4, kSlots, true>(p, plan, stream)
        : launch_kernel<T, kDims, 4, kSlots, false>(p, plan, stream);
  if (plan.splits == 1 || !plan.merge_launch) return;
  const int64_t heads = p.q.size[0] * p.q.size[1];
  if (plan.splits > 16)
    device::launch(merge_splits_kernel<T, 64, 16>, blocks(heads * (kDims / 64)), kThreads, 0,
                   stream, p, plan);
  else
    device::launch(merge_splits_kernel<T, 128, 4>, blocks(heads * (kDims / 128)), kThreads, 0,
                   stream, p, plan);
}

// Rows that share tokens first, where there are some; then row by row what is left.
void plan_tuned(AttendParams p, device::Carver& carver) {
  static constexpr uint8_t kSome = 0;
  if (shares_tokens(p)) {
    plan_union(p, carver);
    p.served = &kSome;
  }
  make_plan(p, carver);
}

void launch_rows(const AttendParams& p, device::Carver& carver, void* stream) {
  Plan plan = make_plan(p, carver);
  if (p.q.size[0] == 0) return;
  plan.tag = fresh_tag();
  const bool wide = p.q.size[2] == 256;
  if (p.q.dtype == TK_BF16)
    wide ? launch_kernels<bf16, 256>(p, plan, stream) : launch_kernels<bf16, 128>(p, plan, stream);
  else
    wide ? launch_kernels<f16, 256>(p, plan, stream) : launch_kernels<f16, 128>(p, plan, stream);
}

void launch_tuned(const AttendParams& p, device::Carver& carver, void* stream) {
  device::Carver nowhere(nullptr);
  make_plan(p, nowhere);  // throws before anything is launched
  AttendParams rest = p;
  if (shares_tokens(p)) rest.served = launch_union(p, carver, stream);
  launch_rows(rest, carver, stream);
}

struct AttendTuned {
  static constexpr const toolkit::Contract& contract = attend::contract;
  static constexpr const char* implementation = "sm_80";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    plan_tuned(attend_params(args), carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    device::Carver carver(call.workspace);
    launch_tuned(attend_params(call.args), carver, call.stream);
  }
};
DEVICE_OP(AttendTuned)

const bool offered = [] {
  tuned_attend = {[](const AttendParams& p, device::Carver& carver) { plan_tuned(p, carver); },
                  launch_tuned};
  return true;
}();

}  // namespace
}  // namespace qsa
