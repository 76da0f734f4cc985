// SPDX-License-Identifier: Apache-2.0
// tq.decode in three launches: queries to fragments (decode_queries.h), one pass over the cache on
// tensor cores (decode_stream.h, decode_heads.h), sequences that several blocks shared
// (decode_merge.h); of few sequences in one (decode_few.h). Notes: decode.md.
#include "tq/decode_host.h"
#include "tq/decode_merge.h"
#include "tq/decode_queries.h"
#include "tq/decode_stream.h"

namespace tq::decode {
namespace {

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
    q.by_columns = qsa::Divider(static_cast<uint32_t>(plan.columns));
    q.by_tiles = qsa::Divider(static_cast<uint32_t>(plan.tiles));
    q.by_kv_heads = qsa::Divider(static_cast<uint32_t>(plan.kv_heads));
    q.whole_pi = q.rotate && q.pi.stride[1] == 1 && q.pi.stride[0] % 4 == 0 && !unaligned("Pi", 16);
    const int rows_at_once = query_rows(plan.head_dim);
    const device::Grid query_grid{(plan.rows + rows_at_once - 1) / rows_at_once,
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
      launch_heads(plan, s, call.stream);
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
    m.by_heads = qsa::Divider(static_cast<uint32_t>(plan.query_heads));
    // A block a head where there are few heads (measured: 192 and 512) and enough results of each
    // for its waves.
    const int64_t items = int64_t{plan.batch} * plan.query_heads;
    const bool shared = items <= 4 * device::multiprocessors() &&
                        int64_t{plan.parts} * plan.sets >= kMergeWaves * plan.batch;
    with_dim(plan.head_dim, [&](auto dim) {
      const device::Grid merge_grid{shared ? items : (items + kMergeWaves - 1) / kMergeWaves, 1, 1};
      device::launch_overlapping(
          shared ? merge_partials<dim(), true> : merge_partials<dim(), false>, merge_grid,
          kMergeThreads, 0, call.stream, m);
    });
  }
};

DEVICE_OP(DecodeSm80)

}  // namespace
}  // namespace tq::decode
