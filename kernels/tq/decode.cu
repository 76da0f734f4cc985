// SPDX-License-Identifier: Apache-2.0
// tq.decode: attention over a TurboQuant cache in three launches: rotate the queries (centroid
// keys), attend over the splits of each sequence, merge the splits (stage 2 in split_merge.h).
// Partials are fp32.
//
// A block takes one split of one sequence for up to kHeads query heads that share a KV head, and
// goes through it in tiles of kTile tokens: (1) one thread a token: unpack the key once, its scores
// against all heads; (2) one wave a head: softmax weights of the tile, running maximum and sum; (3)
// one thread an output element: weighted values.
#include "device/launch.h"
#include "device/op.h"
#include "tq/decode.h"
#include "tq/rotation.h"
#include "tq/split_merge.h"

namespace tq::decode {
namespace {

constexpr int kTile = 128;  // tokens, and threads of a block
constexpr int kHeads = 8;   // query heads a block can take
constexpr int64_t kMostSplits = 64;
constexpr int64_t kEnoughBlocks = 2048;         // a few waves of blocks on the largest GPU
constexpr int64_t kDynamicSharedBytes = 32768;  // beside the static arrays, within 48 KiB

struct DecodeParams {
  Strided<3> query;  // [B,Hq,D]: rotated, or as given for fp8 keys
  Cache cache;
  PageTable table;
  SlotFormat format;
  Codebook centroids;
  Strided<1> seq_lens;
  float* partial;  // [B,Hq,splits,D+1]: normalised output, lse at index D
  float scale;
  bool norm_correction;
  int64_t kv_heads, head_tiles, splits, capacity;
  int group;   // query heads of a KV head
  int heads;   // query heads of a block
  int groups;  // of 8 elements
};

DEVICE_KERNEL(kTile) decode_split(DecodeParams p) {
  DEVICE_SHARED(float, key_value, 256);  // what a key code stands for
  DEVICE_SHARED(int64_t, slot_offsets, kTile);
  DEVICE_SHARED(float, value_scale, kTile);
  DEVICE_SHARED(float, value_zero, kTile);
  DEVICE_SHARED(float, weights, kTile* kHeads);  // scores, then weights, [token][head]
  DEVICE_SHARED(float, running_max, kHeads);
  DEVICE_SHARED(float, running_sum, kHeads);
  DEVICE_SHARED(float, decay, kHeads);  // of the accumulators, for this tile
  DEVICE_DYNAMIC_SHARED(float, rows);   // [2][heads][D]: queries, accumulators

  int64_t item = device::block_x();
  const int64_t split = item % p.splits;
  item /= p.splits;
  const int64_t head_tile = item % p.head_tiles;
  item /= p.head_tiles;
  const int64_t kv_head = item % p.kv_heads, row = item / p.kv_heads;

  int64_t tokens = load_index(p.seq_lens.data, p.seq_lens.dtype, row * p.seq_lens.stride[0]);
  if (tokens > p.capacity) tokens = p.capacity;
  const SplitRange range = split_range(tokens, p.splits, split);
  if (range.begin >= range.end) return;  // the merge does not read it

  const int thread = device::thread(), threads = device::threads();
  const int head_dim = p.format.head_dim;
  const int first_in_group = static_cast<int>(head_tile) * p.heads;
  const int heads = p.group - first_in_group < p.heads ? p.group - first_in_group : p.heads;
  const int64_t first_head = kv_head * p.group + first_in_group;
  const int accumulators = heads * head_dim;  // offset of theirs in rows

  for (int code = thread; code < 1 << p.format.key_bits; code += threads)
    key_value[code] = key_element(p.format, p.centroids, code);
  for (int i = thread; i < heads * head_dim; i += threads) {
    rows[i] = load_float(p.query.data, p.query.dtype,
                         row * p.query.stride[0] + (first_head + i / head_dim) * p.query.stride[1] +
                             i % head_dim * p.query.stride[2]);
    rows[accumulators + i] = 0;
  }
  if (thread < kHeads) {
    running_max[thread] = -device::infinity();
    running_sum[thread] = 0;
  }
  device::sync_block();

  for (int64_t tile = range.begin; tile < range.end; tile += kTile) {
    // 1: scores.
    const int64_t token = tile + thread;
    const int64_t offset =
        token < range.end ? find_slot(p.cache, p.table, row, token, kv_head) : kMasked;
    slot_offsets[thread] = offset;
    if (offset == kMasked) {
      for (int h = 0; h < heads; ++h) weights[thread * kHeads + h] = -device::infinity();
    } else {
      const Slot slot = slot_at(p.cache, offset);
      value_scale[thread] = load_half(slot, p.format.scale_at);
      value_zero[thread] = load_half(slot, p.format.zero_at);
      float dot[kHeads] = {};
      float squares = 0;
      for (int group = 0; group < p.groups; ++group) {
        const uint64_t word = load_group(slot, 0, p.format.key_bytes, p.format.key_bits, group);
        DEVICE_UNROLL
        for (int e = 0; e < kGroup; ++e) {
          const int d = group * kGroup + e;
          if (d >= head_dim) break;
          const float key = key_value[code_of(word, p.format.key_bits, e)];
          squares = device::fma(key, key, squares);
          DEVICE_UNROLL
          for (int h = 0; h < kHeads; ++h)
            if (h < heads) dot[h] = device::fma(rows[h * head_dim + d], key, dot[h]);
        }
      }
      const float norm = p.format.fp8 ? 1 : load_half(slot, p.format.norm_at);
      const float divisor = p.norm_correction ? device::sqrt(squares + 1e-16f) : 1;
      DEVICE_UNROLL
      for (int h = 0; h < kHeads; ++h)
        if (h < heads)
          weights[thread * kHeads + h] = norm * device::divide(dot[h], divisor) * p.scale;
    }
    device::sync_block();

    // 2: weights. A NaN score gives NaN weight and sum, and +inf gives exp(inf - inf): both stay
    // with the head.
    for (int h = device::wave(); h < heads; h += device::waves()) {
      float most = -device::infinity();
      for (int t = device::lane(); t < kTile; t += device::kWave)
        most = device::max(most, weights[t * kHeads + h]);
      const float old = running_max[h];
      most = device::max(device::wave_max(most), old);
      const float base =
          most == -device::infinity() ? 0 : most;  // nothing live yet: exp(-inf - 0) = 0
      float sum = 0;
      for (int t = device::lane(); t < kTile; t += device::kWave) {
        const float weight = device::exp(weights[t * kHeads + h] - base);
        weights[t * kHeads + h] = weight;
        sum += weight;
      }
      sum = device::wave_sum(sum);
      device::sync_wave();  // all lanes have read running_max
      if (device::lane() == 0) {
        const float factor = old == -device::infinity() ? 0 : device::exp(old - most);
        decay[h] = factor;
        running_sum[h] = running_sum[h] * factor + sum;
        running_max[h] = most;
      }
    }
    device::sync_block();

    // 3: values. Masked tokens are left out, not weighed 0: 0 * NaN is NaN.
    const int live = range.end - tile < kTile ? static_cast<int>(range.end - tile) : kTile;
    for (int d = thread; d < head_dim; d += threads) {
      float sum[kHeads] = {};
      for (int t = 0; t < live; ++t) {
        if (slot_offsets[t] == kMasked) continue;
        const int code = load_value_code(slot_at(p.cache, slot_offsets[t]), p.format, d);
        const float value = static_cast<float>(code) * value_scale[t] + value_zero[t];
        DEVICE_UNROLL
        for (int h = 0; h < kHeads; ++h)
          if (h < heads) sum[h] = device::fma(weights[t * kHeads + h], value, sum[h]);
      }
      DEVICE_UNROLL
      for (int h = 0; h < kHeads; ++h)
        if (h < heads) {
          const int at = accumulators + h * head_dim + d;
          rows[at] = device::fma(rows[at], decay[h], sum[h]);
        }
    }
    device::sync_block();
  }

  for (int i = thread; i < heads * (head_dim + 1); i += threads) {
    const int h = i / (head_dim + 1), d = i % (head_dim + 1);
    const float sum = running_sum[h];
    float result;  // a NaN sum is not 0 and makes the head NaN
    if (d == head_dim)
      result = sum == 0 ? -device::infinity() : running_max[h] + device::log(sum);
    else
      result = sum == 0 ? 0 : device::divide(rows[accumulators + h * head_dim + d], sum);
    const int64_t query_heads = p.kv_heads * p.group;
    p.partial[((row * query_heads + first_head + h) * p.splits + split) * (head_dim + 1) + d] =
        result;
  }
}

DEVICE_KERNEL(kItemThreads) rotate_queries(RotateParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) rotate_item(p, i);
}

DEVICE_KERNEL(kItemThreads) merge_splits(MergeParams p) {
  for (int64_t i = first_item(); i < p.items; i += item_step()) merge_item(p, i);
}

// How a call is cut into blocks, from shapes alone.
struct Plan {
  int64_t batch, query_heads, kv_heads, head_dim, group, heads, head_tiles, capacity, splits,
      blocks;
  uint64_t shared_bytes;
};

Plan plan_of(const Args& a) {
  const TensorView q = a.tensor("query"), cache = a.tensor("kv_cache");
  Plan p{};
  p.batch = q.size(0);
  p.query_heads = q.size(1);
  p.head_dim = q.size(2);
  p.kv_heads = cache.size(2);
  p.group = p.query_heads / p.kv_heads;
  const int64_t bytes_per_head = 2 * p.head_dim * static_cast<int64_t>(sizeof(float));
  const int64_t fitting = kDynamicSharedBytes / bytes_per_head;
  if (fitting < 1)
    throw device::Unsupported("because head_dim " + std::to_string(p.head_dim) + " needs " +
                              std::to_string(bytes_per_head) + " bytes of shared memory, at most " +
                              std::to_string(kDynamicSharedBytes) + " are used");
  p.heads = p.group;
  for (const int64_t most : {int64_t{kHeads}, fitting})
    if (p.heads > most) p.heads = most;
  p.head_tiles = (p.group + p.heads - 1) / p.heads;
  p.heads = (p.group + p.head_tiles - 1) / p.head_tiles;  // tiles of nearly equal size
  p.shared_bytes = static_cast<uint64_t>(p.heads * bytes_per_head);
  p.capacity = a.tensor("block_table").size(1) * cache.size(1);
  const int64_t units = p.batch * p.kv_heads * p.head_tiles;
  const int64_t tiles = (p.capacity + kTile - 1) / kTile;
  p.splits = units == 0 ? 1 : (kEnoughBlocks + units - 1) / units;
  for (const int64_t most : {tiles, kMostSplits})
    if (p.splits > most) p.splits = most;
  p.blocks = units * p.splits;
  if (p.blocks > INT32_MAX)
    throw device::Unsupported("because a launch takes at most 2147483647 blocks, this call needs " +
                              std::to_string(p.blocks));
  return p;
}

struct Workspace {
  float* partial;
  float* q_rot;
};

Workspace carve(const Args& a, const Plan& plan, device::Carver& carver) {
  Workspace w{};
  w.partial = carver.take<float>(plan.batch * plan.query_heads * plan.splits * (plan.head_dim + 1));
  if (!a.boolean("key_fp8"))
    w.q_rot = carver.take<float>(plan.batch * plan.query_heads * plan.head_dim);
  return w;
}

struct Decode {
  static constexpr const toolkit::Contract& contract = decode::contract;
  static constexpr const char* implementation = "portable";

  static uint64_t workspace(const toolkit::Args& a) {
    device::Carver carver(nullptr);
    carve(a, plan_of(a), carver);
    return carver.used();
  }

  static void run(const device::OpCall& call) {
    const Args& a = call.args;
    const Plan plan = plan_of(a);
    if (plan.batch == 0) return;
    device::Carver carver(call.workspace);
    const Workspace w = carve(a, plan, carver);

    DecodeParams p{};
    p.format = slot_format(a, plan.head_dim);
    p.query = strided<3>(a.tensor("query"));
    if (!p.format.fp8) {
      const Strided<3> rotated = packed_floats(w.q_rot, plan.query_heads, plan.head_dim);
      const RotateParams rotate = rotate_params(a, rotated);
      device::launch(rotate_queries, item_grid(rotate.items), kItemThreads, 0, call.stream, rotate);
      p.query = rotated;
      p.norm_correction = a.boolean("norm_correction");
    }
    p.cache = cache_of(a);
    p.table = page_table(a);
    p.centroids = codebook(a, p.format);
    p.seq_lens = strided<1>(a.tensor("seq_lens"));
    p.partial = w.partial;
    p.scale = static_cast<float>(a.real("scale"));
    p.kv_heads = plan.kv_heads;
    p.head_tiles = plan.head_tiles;
    p.splits = plan.splits;
    p.capacity = plan.capacity;
    p.group = static_cast<int>(plan.group);
    p.heads = static_cast<int>(plan.heads);
    p.groups = groups_of(p.format.head_dim);
    device::launch(decode_split, device::Grid{static_cast<int>(plan.blocks), 1, 1}, kTile,
                   plan.shared_bytes, call.stream, p);

    const int64_t lse = plan.head_dim + 1;
    const MergeParams merge{w.partial,
                            {plan.query_heads * plan.splits * lse, plan.splits * lse, lse, 1},
                            p.seq_lens,
                            plan.capacity,
                            strided<3>(a.tensor("output")),
                            strided<2>(a.tensor("lse")),
                            plan.query_heads,
                            plan.splits,
                            static_cast<int>(plan.head_dim),
                            plan.batch * plan.query_heads * plan.head_dim};
    device::launch(merge_splits, item_grid(merge.items), kItemThreads, 0, call.stream, merge);
  }
};

DEVICE_OP(Decode)

}  // namespace
}  // namespace tq::decode
