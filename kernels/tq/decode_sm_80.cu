// SPDX-License-Identifier: Apache-2.0
// tq.decode in three launches: queries to fragments (decode_queries.h), one pass over the cache on
// tensor cores (decode_stream.h), sequences that several blocks shared (decode_merge.h). Notes:
// decode.md.
#include <algorithm>
#include <atomic>
#include <random>

#include "device/launch.h"
#include "device/op.h"
#include "tq/decode.h"
#include "tq/decode_few.h"
#include "tq/decode_heads_stream.h"
#include "tq/decode_merge.h"
#include "tq/decode_queries.h"
#include "tq/decode_stream.h"

namespace tq::decode {
namespace {

// How a call is laid out, from shapes and strides alone.
struct Plan {
  int batch, query_heads, kv_heads, head_dim, group;
  int tiles, tile_heads, columns;  // decode_queries.h
  bool wide;                       // decode_wide.h
  bool bulk;                       // decode_ring.h
  bool heads;                      // decode_heads.h
  int block_tiles, head_tiles, halves, wave_tiles, depth, ring;
  int sets;  // decode_heads_stream.h; 1 elsewhere
  int merge_at, scores_at, queries_at, ring_at, shared_bytes;
  int page, page_tiles, capacity, parts;
  int rows;
  int few_parts, few_waves;  // decode_few.h; 0: another form
  SlotFormat format;
  TileLayout tile;
};

void supported(bool yes, const std::string& because) {
  if (!yes) throw device::Unsupported("because " + because);
}

// Tokens of a page end to end with all their heads, or each head's tokens end to end.
TileLayout tile_layout(const TensorView& cache) {
  const int64_t page = cache.size(1), heads = cache.size(2), slot = cache.size(3);
  const int slot_bytes = static_cast<int>(slot), all = static_cast<int>(heads) * slot_bytes;
  supported(cache.stride(3) == 1 && cache.stride(0) % 16 == 0, "the cache has odd strides");
  TileLayout t{};
  t.bytes = kTileTokens * all;
  if (cache.stride(2) == slot && cache.stride(1) == slot * heads) {
    t.runs = 1;
    t.run_bytes = t.bytes;
    t.token_stride = all;
    t.head_stride = slot_bytes;
  } else {
    supported(cache.stride(1) == slot && cache.stride(2) % 16 == 0,
              "neither tokens nor heads of a page lie end to end");
    t.runs = static_cast<int>(heads);
    t.run_bytes = kTileTokens * slot_bytes;
    t.run_stride = cache.stride(2);
    t.token_stride = slot_bytes;
    t.head_stride = t.run_bytes;
  }
  supported(page % kTileTokens == 0 || (t.runs == 1 && page * all % 16 == 0),
            "pages of " + std::to_string(page) + " tokens end between 16-byte units");
  t.last_bytes = (static_cast<int>((page - 1) % kTileTokens) + 1) * all;
  t.bytes_of_tile = kTileTokens * cache.stride(1);
  return t;
}

// Lays out the shared memory of a block; whether two stages fit.
bool fits(Plan& p, int units) {
  const int key_bits = p.format.key_bits, alignment = pair_table_alignment(key_bits);
  p.merge_at = p.scores_at = pair_table_bytes(key_bits) + alignment - 16;
  if (p.wave_tiles > 1)
    p.scores_at += units * device::kWave * 4 * merge_floats(wave_dim(p.head_dim), p.wide);
  p.queries_at = p.ring_at = p.scores_at + (p.halves > 1 ? kScoresBytes : 0);
  if (p.wide) {
    p.queries_at = p.scores_at + kWaves * kWideFloats * 4;
    p.ring_at = p.queries_at + p.head_tiles * kWideQueryBytes;
  }
  // Two blocks of a multiprocessor hide each other's waits; one where two have no room.
  p.ring = 0;
  for (int blocks = stream_blocks(p.columns); blocks >= 1 && p.ring < 2; --blocks) {
    const int budget = static_cast<int>(device::shared_bytes_of_block()) / blocks - p.ring_at -
                       static_cast<int>(kBatches * sizeof(Batch) + kWaves * sizeof(WaveState) +
                                        (p.bulk ? kMostRing * sizeof(StageSlot) : 0)) -
                       1536;                  // the rest, and what a block costs
    const int tiles = budget / p.tile.bytes;  // that fit
    p.depth = p.wide || tiles >= 4 * p.wave_tiles ? 2 : 1;
    p.ring = tiles / (p.depth * p.wave_tiles);
    if (p.ring > kMostRing) p.ring = kMostRing;
    p.parts = device::multiprocessors() * blocks;
  }
  return p.ring >= 2;
}

// The same for decode_heads.h, so that `blocks` fit a multiprocessor.
void lay_out_heads(Plan& p, int blocks, bool many) {
  constexpr int kOfMultiprocessor = 1024;  // shared memory that each block costs beside its own
  const int stage = p.sets * kTeamTiles * p.tile.bytes;
  const int fixed = p.sets * p.head_tiles * team_bytes(p.format.key_bits, many) +
                    p.head_tiles * heads_query_bytes(p.format.key_bits, many);
  const int statics =
      static_cast<int>(kMostTeams * kTeamWaves * sizeof(HeadsWave) + device::kWave * sizeof(int) +
                       kMostRing * sizeof(device::BulkBarrier)) +
      64;
  const int room =
      (static_cast<int>(device::shared_bytes_of_block()) + kOfMultiprocessor) / blocks -
      kOfMultiprocessor - statics - fixed;
  const auto batches = [](int ring) {
    return (heads_batches(ring) * static_cast<int>(sizeof(Batch)) + 15) / 16 * 16;
  };
  p.ring = kMostRing;
  while (p.ring >= 2 && p.ring * stage + batches(p.ring) > room) --p.ring;
  p.wave_tiles = p.sets * kTeamTiles;
  p.merge_at = 0;
  p.queries_at = p.sets * p.head_tiles * team_bytes(p.format.key_bits, many);
  p.scores_at = fixed;
  p.ring_at = fixed + batches(p.ring);
  p.parts = device::multiprocessors() * blocks;
}

// The same for decode_heads.h.
bool share_heads(Plan& p) {
  p.tiles = (p.group + kManyHeads - 1) / kManyHeads;
  p.tile_heads = (p.group + p.tiles - 1) / p.tiles;
  p.columns = p.tile_heads > kFewHeads ? kManyHeads : kFewHeads;
  const bool many = p.columns == kManyHeads;
  p.rows = p.batch * p.kv_heads * p.tiles * p.columns;
  p.block_tiles = p.kv_heads * p.tiles <= kMostTeams ? p.tiles : 1;
  p.head_tiles = p.kv_heads * p.block_tiles;
  if (p.head_tiles > kMostTeams) return false;
  p.halves = 1, p.depth = 1;
  p.ring = 0;
  // As many waves of a multiprocessor as there is room for; blocks hide each other's waits.
  for (int teams = kMostTeams / p.head_tiles; teams >= 1 && p.ring < 2; --teams)
    for (p.sets = 1; p.sets <= kMostSets && p.ring < 2; ++p.sets)
      if (teams % p.sets == 0) lay_out_heads(p, teams / p.sets, many);
  --p.sets;
  return p.ring >= 2;
}

// How heads and tiles are shared out over a block's waves; whether that fits.
bool share(Plan& p) {
  const int most_heads = p.wide ? kWideColumns : 8;  // of a tile
  p.tiles = (p.group + most_heads - 1) / most_heads;
  p.tile_heads = (p.group + p.tiles - 1) / p.tiles;
  if (p.wide)
    p.columns = kWideColumns;
  else
    p.columns = p.tile_heads <= 4 && p.head_dim >= 128 ? 4 : 8;  // fewer instances of small sizes
  p.rows = p.batch * p.kv_heads * p.tiles * p.columns;
  p.block_tiles = p.kv_heads * p.tiles * p.halves <= kWaves ? p.tiles : 1;
  p.head_tiles = p.kv_heads * p.block_tiles;
  const int units = p.head_tiles * p.halves;
  if (units > kWaves) return false;
  p.wave_tiles = 1;
  while (2 * p.wave_tiles * units <= kWaves) p.wave_tiles *= 2;
  while (!fits(p, units) && p.wave_tiles > 1) p.wave_tiles /= 2;  // fewer tiles at once
  return p.ring >= 2;
}

// f(layout) of the instance of decode_few that serves a plan; none does: false.
template <class F>
bool with_few(const Plan& p, F f) {
  const auto with_bits = [&](auto key, auto value) {
    constexpr std::integral_constant<int, 128> dim;
    constexpr std::integral_constant<int, 4> four;
    constexpr std::integral_constant<int, 8> eight;
    p.columns == 4 ? f(key, value, dim, four) : f(key, value, dim, eight);
    return true;
  };
  constexpr std::integral_constant<int, 3> k3;
  constexpr std::integral_constant<int, 4> k4;
  constexpr std::integral_constant<int, 8> k8;
  const bool v3 = p.format.value_bits == 3;
  if (p.head_dim != 128) return false;
  if (p.format.fp8) return v3 ? with_bits(k8, k3) : with_bits(k8, k4);
  if (p.format.key_bits == 4) return with_bits(k4, k4);
  return v3 ? with_bits(k3, k3) : with_bits(k3, k4);
}

// Whether blocks of one KV head serve: few sequences, whose results of all KV heads would else be
// much to merge.
void plan_few(Plan& p, const Args& a) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  const int units = p.kv_heads * p.tiles;
  if (p.batch == 0 || p.batch * units > kFewUnits || cache.stride(1) > 1 << 22) return;
  const auto far = [](int64_t stride) { return stride > INT32_MAX || stride < -INT32_MAX; };
  if (q.stride(2) != 1 || q.stride(1) % 4 != 0 || q.stride(0) % 4 != 0) return;
  for (const int i : {0, 1})
    if (far(q.stride(i)) || far(a.tensor("block_table").stride(i))) return;
  if (!p.format.fp8) {
    const TensorView pi = a.tensor("Pi");
    if (pi.stride(1) != 1 || pi.stride(0) % 4 != 0 || far(pi.stride(0))) return;
  }
  with_few(p, [&](auto key, auto value, auto dim, auto columns) {
    using At = FewLayout<key(), value(), dim(), columns()>;
    if (p.format.zero_at + 2 > At::kSlotBytes) return;  // keys with room between
    for (int waves = kFewWaves; waves >= 4; waves /= 2)
      if (At::bytes(waves) + kFewStaticBytes <= device::shared_bytes_of_block()) {
        p.few_waves = waves;
        p.few_parts = std::max(1, device::multiprocessors() / units);
        p.shared_bytes = At::bytes(waves);
        return;
      }
  });
}

// `few`: decode_few.h may serve.
Plan plan_of(const Args& a, bool few) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  const int64_t page = cache.size(1), slot = cache.size(3);
  const int64_t capacity = a.tensor("block_table").size(1) * page;
  // Found by random cases on an H200 (key_scale=30, up to 2.6 times the bound): sums of tensor
  // cores are cut, which only f32 outputs are exact enough to show where a few large scores decide.
  supported(q.dtype() != TK_F32, "f32 asks for more than sums of tensor cores hold");
  supported(
      q.size(2) == 64 || q.size(2) == 80 || q.size(2) == 96 || q.size(2) == 128 || q.size(2) == 256,
      "head_dim is none of 64, 80, 96, 128 and 256");
  supported(capacity <= INT32_MAX / 2 && cache.size(0) <= INT32_MAX &&
                q.size(0) * q.size(1) <= INT32_MAX / 64 && q.size(1) <= 1024 && slot <= 1 << 12,
            "the sizes are beyond 32 bits");
  Plan p{};
  p.format = slot_format(a, q.size(2));
  supported(slot % 2 == 0 && p.format.value_at % 2 == 0, "slots are not 2-byte aligned");
  if (p.format.fp8)
    supported(slot % 4 == 0 && p.format.value_at % 4 == 0, "fp8 keys are not 4-byte aligned");
  supported(p.format.fp8 || p.format.key_bits == 3 || p.format.value_bits == 4,
            "4-bit keys with 3-bit values are not tuned");
  p.tile = tile_layout(cache);
  p.capacity = static_cast<int>(capacity);
  supported(q.size(0) * ((capacity + kTileTokens - 1) / kTileTokens + 1) <= INT32_MAX / 16,
            "the tiles are beyond 32 bits");
  p.page = static_cast<int>(page);
  p.page_tiles = (p.page + kTileTokens - 1) / kTileTokens;
  p.batch = static_cast<int>(q.size(0));
  p.query_heads = static_cast<int>(q.size(1));
  p.kv_heads = static_cast<int>(cache.size(2));
  p.head_dim = static_cast<int>(q.size(2));
  p.group = p.query_heads / p.kv_heads;
  p.bulk = device::hopper_or_later() && p.head_dim == 128 && p.tile.runs == 1 &&
           p.tile.token_stride % 4 == 0;
  p.heads = p.head_dim == kHeadsDim && p.format.key_bits != 4;
  bool room = p.heads && share_heads(p);
  if (!room) {
    p.heads = false, p.sets = 1;
    p.wide = p.head_dim == kWideDim && !p.format.fp8 && p.group > 8;
    p.halves = p.head_dim / wave_dim(p.head_dim);
    room = share(p);
  }
  if (!room && p.wide) {
    p.wide = false;
    room = share(p);
  }
  supported(p.head_tiles * p.halves <= kWaves,
            "there are more KV heads than a block has waves for");
  supported(room, "two stages of " + std::to_string(p.tile.bytes * p.wave_tiles) +
                      " bytes do not fit shared memory");
  const int stage_tiles = p.wave_tiles * p.depth;
  p.bulk = p.bulk && stage_tiles <= kMostBulkTiles && p.wave_tiles * p.head_tiles == kWaves &&
           (p.columns != 4 || p.depth == 2);
  p.shared_bytes = p.ring_at + p.ring * p.depth * p.wave_tiles * p.tile.bytes;
  if (few) plan_few(p, a);
  return p;
}

struct Workspace {
  uint16_t* fragments;
  float* gains;
  float* partial;
  float* partial_lse;
  uint64_t* arrivals;  // of decode_few.h, as statistics
  Statistics* statistics;
};

Workspace carve(const Plan& p, device::Carver& carver) {
  Workspace w{};
  if (p.few_parts) {
    const int64_t units = int64_t{p.kv_heads} * p.tiles;
    const int64_t heads = (p.few_parts + p.batch) * units * kFewHeads;
    w.arrivals = carver.take<uint64_t>(p.batch * units);
    w.statistics = carver.take<Statistics>(heads);
    w.partial = carver.take<float>(heads * p.head_dim);
    return w;
  }
  const int64_t query_bytes =
      p.heads ? int64_t{p.rows} / p.columns *
                    heads_query_bytes(p.format.key_bits, p.columns == kManyHeads)
              : int64_t{4} * p.rows * p.head_dim;
  w.fragments = carver.take<uint16_t>(query_bytes / 2);
  w.gains = carver.take<float>(p.rows);
  const int64_t slots = (int64_t{2} * p.parts + p.batch) * p.sets;
  w.partial = carver.take<float>(slots * p.query_heads * p.head_dim);
  w.partial_lse = carver.take<float>(slots * p.query_heads);
  return w;
}

// Of a slot without padding.
constexpr int slot_bytes(int key_bits, int value_bits, int dim) {
  return key_bits * dim / 8 + (key_bits == 8 ? 0 : 2) + value_bits * dim / 8 + 4;
}

// f(head_dim as a constant).
template <class F>
void with_dim(int head_dim, F f) {
  switch (head_dim) {
    case 64:
      return f(std::integral_constant<int, 64>());
    case 80:
      return f(std::integral_constant<int, 80>());
    case 96:
      return f(std::integral_constant<int, 96>());
    case 128:
      return f(std::integral_constant<int, 128>());
    default:
      return f(std::integral_constant<int, 256>());
  }
}

// The same of decode_heads.h: f(key bits, value bits, many heads).
template <class F>
void with_heads_instance(const Plan& p, F f) {
  const auto with_many = [&](auto key, auto value) {
    if (p.columns == kManyHeads)
      f(key, value, std::true_type());
    else
      f(key, value, std::false_type());
  };
  const auto with_value = [&](auto key) {
    if (p.format.value_bits == 3)
      with_many(key, std::integral_constant<int, 3>());
    else
      with_many(key, std::integral_constant<int, 4>());
  };
  if (p.format.fp8)
    with_value(std::integral_constant<int, 8>());
  else
    with_value(std::integral_constant<int, 3>());
}

// The instance of a call: f(key bits, value bits, dimensions, columns, stride) as constants.
template <class F>
void with_instance(const Plan& p, F f) {
  const auto with_bits = [&](auto key, auto value) {
    with_dim(p.head_dim, [&](auto dim) {
      constexpr std::integral_constant<int, 4> four;
      constexpr std::integral_constant<int, 8> eight;
      constexpr std::integral_constant<int, 16> sixteen;
      constexpr std::integral_constant<int, kAnyStride> any;
      constexpr std::integral_constant<int, kEvenStride> even;
      if constexpr (dim() == 128) {
        constexpr std::integral_constant<int, 8 * slot_bytes(key(), value(), 128)> of_eight;
        if (p.bulk && p.columns == 4 && p.kv_heads == 8 && p.tile.token_stride == of_eight())
          return f(key, value, dim, four, of_eight);
        if (p.bulk && p.columns == 4) return f(key, value, dim, four, even);
        if (p.bulk) return f(key, value, dim, eight, even);
      }
      if constexpr (dim() >= 128) {
        if (p.columns == 4) return f(key, value, dim, four, any);
      }
      if constexpr (dim() == kWideDim && key() != 8) {
        if (p.columns == 16) return f(key, value, dim, sixteen, any);
      }
      f(key, value, dim, eight, any);
    });
  };
  constexpr std::integral_constant<int, 3> k3;
  constexpr std::integral_constant<int, 4> k4;
  constexpr std::integral_constant<int, 8> k8;
  const bool v3 = p.format.value_bits == 3;
  if (p.format.fp8)
    v3 ? with_bits(k8, k3) : with_bits(k8, k4);
  else if (p.format.key_bits == 4)
    with_bits(k4, k4);
  else
    v3 ? with_bits(k3, k3) : with_bits(k3, k4);
}

// A number that no other call has, above a count of blocks.
uint64_t fresh_tag() {
  constexpr int kCountBits = 16;
  static std::atomic<uint64_t> next = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return next.fetch_add(0x9e3779b97f4a7c15u) << kCountBits;
}

Schedule schedule_of(const Args& a, const Plan& plan, int stage_tiles, int parts) {
  Schedule s{strided<1>(a.tensor("seq_lens")),
             plan.capacity,
             plan.batch,
             plan.page,
             plan.page_tiles,
             stage_tiles,
             parts};
  s.by_page = qsa::Divider(static_cast<uint32_t>(plan.page));
  s.by_page_tiles = qsa::Divider(static_cast<uint32_t>(plan.page_tiles));
  s.by_stage_tiles = qsa::Divider(static_cast<uint32_t>(stage_tiles));
  return s;
}

void run_few(const device::OpCall& call, const Plan& plan, const Cache& cache, const Workspace& w) {
  const Args& a = call.args;
  FewParams f{};
  StreamParams& s = f.stream;
  s.tile = plan.tile;
  s.format = plan.format;
  s.norm_correction = !plan.format.fp8 && a.boolean("norm_correction");
  s.fp8_factor = fp8_factor(plan.format.fp8);
  f.schedule = schedule_of(a, plan, kFewStage, plan.few_parts);
  f.cache = cache.data;
  f.blocks = cache.blocks;
  f.block_stride = cache.stride[0];
  f.tile_stride = plan.tile.bytes_of_tile;
  f.centroids = codebook(a, plan.format);
  const TensorView query = a.tensor("query");
  f.token_stride = static_cast<int>(cache.stride[1]);
  f.head_stride = cache.stride[2];
  const TensorView table = a.tensor("block_table");
  f.table = table.data<void>();
  f.table_dtype = table.dtype();
  f.table_row = static_cast<int>(table.stride(0));
  f.table_column = static_cast<int>(table.stride(1));
  f.query = query.data<uint16_t>();
  f.dtype = query.dtype();
  f.query_row = static_cast<int>(query.stride(0));
  f.query_head = static_cast<int>(query.stride(1));
  f.rotate = !plan.format.fp8;
  if (f.rotate) {
    const Rotation pi = rotation_of(a);
    f.pi = pi.data;
    f.pi_row = static_cast<int>(pi.stride[0]);
  }
  f.scale = static_cast<float>(a.real("scale")) * 1.44269504088896341f;
  f.output = strided<3>(a.tensor("output"));
  f.lse = strided<2>(a.tensor("lse"));
  f.units = plan.kv_heads * plan.tiles;
  f.group = plan.group;
  f.tile_heads = plan.tile_heads;
  f.capacity_tiles = static_cast<int>(a.tensor("block_table").size(1)) * plan.page_tiles;
  f.partial = w.partial;
  f.statistics = w.statistics;
  f.arrivals = w.arrivals;
  f.tag = fresh_tag();
  with_few(plan, [&](auto key, auto value, auto dim, auto columns) {
    s.tile.token_stride = FewLayout<key(), value(), dim(), columns()>::kPitch;
    const auto launch = [&](auto kernel) {
      device::launch(kernel, device::Grid{plan.kv_heads, plan.tiles, plan.few_parts},
                     plan.few_waves * device::kWave, static_cast<size_t>(plan.shared_bytes),
                     call.stream, f);
    };
    if (plan.batch == 1)
      launch(decode_few<key(), value(), dim(), columns(), true>);
    else
      launch(decode_few<key(), value(), dim(), columns(), false>);
  });
}

struct DecodeSm80 {
  static constexpr const toolkit::Contract& contract = decode::contract;
  static constexpr const char* implementation = "sm_80";

  static uint64_t workspace(const toolkit::Args& a) {
    uint64_t most = 0;  // where the data lie can decide for the one or the other
    for (const bool few : {false, true}) {
      device::Carver carver(nullptr);
      carve(plan_of(a, few), carver);
      most = std::max(most, carver.used());
    }
    return most;
  }

  static void run(const device::OpCall& call) {
    const Args& a = call.args;
    const auto unaligned = [&](const char* name, uintptr_t bytes) {
      return reinterpret_cast<uintptr_t>(a.tensor(name).data<void>()) % bytes != 0;
    };
    const Plan plan = plan_of(a, !unaligned("query", 8) && (!a.has("Pi") || !unaligned("Pi", 16)));
    if (plan.batch == 0) return;
    const Cache cache = cache_of(a);
    supported(reinterpret_cast<uintptr_t>(cache.data) % 16 == 0,
              "the cache is not 16-byte aligned");
    device::Carver carver(call.workspace);
    const Workspace w = carve(plan, carver);

    if (plan.few_parts) return run_few(call, plan, cache, w);

    QueryParams q{};
    q.query = strided<3>(a.tensor("query"));
    q.rotate = !plan.format.fp8;
    if (q.rotate) q.pi = rotation_of(a);
    q.key_bits = plan.format.key_bits;
    q.kv_heads = plan.kv_heads;
    q.group = plan.group;
    q.tiles = plan.tiles;
    q.tile_heads = plan.tile_heads;
    q.columns = plan.columns;
    q.heads = plan.heads;
    q.rows = plan.rows;
    q.scale = static_cast<float>(a.real("scale")) * 1.44269504088896341f;  // scores in base 2
    q.fragments = w.fragments;
    q.gains = w.gains;
    const device::Grid query_grid{(plan.rows + kQueryRows - 1) / kQueryRows,
                                  plan.head_dim / query_outputs(plan.head_dim), 1};
    with_dim(plan.head_dim, [&](auto dim) {
      device::launch(prepare_queries<dim()>, query_grid, kQueryThreads,
                     query_shared_bytes(plan.head_dim), call.stream, q);
    });

    StreamParams s{};
    s.schedule = schedule_of(a, plan, plan.wave_tiles * plan.depth, plan.parts);
    s.cache = cache.data;
    s.blocks = cache.blocks;
    s.block_stride = cache.stride[0];
    s.tile = plan.tile;
    s.table = page_table(a);
    s.format = plan.format;
    s.centroids = codebook(a, plan.format);
    s.norm_correction = !plan.format.fp8 && a.boolean("norm_correction");
    s.queries = reinterpret_cast<const uint32_t*>(w.fragments);
    s.gains = w.gains;
    s.fp8_factor = fp8_factor(plan.format.fp8);
    s.partial = w.partial;
    s.partial_lse = w.partial_lse;
    s.query_heads = plan.query_heads;
    s.group = plan.group;
    s.tiles = plan.tiles;
    s.tile_heads = plan.tile_heads;
    s.block_tiles = plan.block_tiles;
    s.head_tiles = plan.head_tiles;
    s.row_tiles = plan.kv_heads * plan.tiles;
    s.halves = plan.halves;
    s.by_units = qsa::Divider(static_cast<uint32_t>(plan.head_tiles * plan.halves));
    s.by_block_tiles = qsa::Divider(static_cast<uint32_t>(plan.block_tiles));
    s.wave_tiles = plan.wave_tiles;
    s.depth = plan.depth;
    s.ring = plan.ring;
    s.merge_at = plan.merge_at;
    s.scores_at = plan.scores_at;
    s.queries_at = plan.queries_at;
    s.ring_at = plan.ring_at;
    s.sets = plan.sets;
    s.bulk = device::hopper_or_later() && plan.tile.runs == 1;
    const device::Grid grid{plan.parts, plan.tiles / plan.block_tiles, 1};
    const auto bytes = static_cast<size_t>(plan.shared_bytes);
    if (plan.heads)
      with_heads_instance(plan, [&](auto key, auto value, auto many) {
        device::launch_overlapping(decode_heads<key(), value(), many()>, grid,
                                   plan.sets * plan.head_tiles * kTeamWaves * device::kWave, bytes,
                                   call.stream, s);
      });
    else
      with_instance(plan, [&](auto key, auto value, auto dim, auto columns, auto stride) {
        device::launch_overlapping(decode_stream<key(), value(), dim(), columns(), stride()>, grid,
                                   kStreamThreads, bytes, call.stream, s);
      });

    PartialMergeParams m{};
    m.schedule = s.schedule;
    m.partial = w.partial;
    m.partial_lse = w.partial_lse;
    m.output = strided<3>(a.tensor("output"));
    m.lse = strided<2>(a.tensor("lse"));
    m.heads = plan.query_heads;
    m.sets = plan.sets;
    const int64_t items = int64_t{plan.batch} * plan.query_heads;
    const bool shared = plan.parts >= 8 * plan.batch && (plan.heads || 2 * items <= plan.parts);
    with_dim(plan.head_dim, [&](auto dim) {
      if (shared)
        device::launch_overlapping(merge_partials<dim(), true>,
                                   device::Grid{items, dim_chunks(dim()), 1}, kMergeThreads, 0,
                                   call.stream, m);
      else
        device::launch_overlapping(merge_partials<dim(), false>,
                                   device::Grid{(items + kMergeWaves - 1) / kMergeWaves, 1, 1},
                                   kMergeThreads, 0, call.stream, m);
    });
  }
};

DEVICE_OP(DecodeSm80)

}  // namespace
}  // namespace tq::decode
