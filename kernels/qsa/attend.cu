// SPDX-License-Identifier: Apache-2.0
// qsa.attend: one block a (row, KV head, share of its query heads, split of the listed tokens). Per
// tile of 32 tokens: keys into shared memory, scores (one thread a token and a part of the heads),
// an online softmax per head, then each thread adds the values of its two dimensions to all heads.
// K and V are read once for all heads of the block. Everything is fp32, the probabilities too;
// scores are in base 2. Few rows are split, and merged by qsa.merge's kernel.
#include <algorithm>
#include <cmath>

#include "qsa/attend.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kTile = 32;  // tokens
constexpr int kParts = 4;  // of the heads in the score stage
constexpr int kThreads = kTile * kParts;
constexpr int kOutputDims =
    2 * kThreads;            // of a block; a wider head takes several blocks, each with all scores
constexpr int kAhead = 8;    // tokens whose values are loaded before they are used
constexpr int kChunk = 256;  // dimensions of keys in shared memory
constexpr int kPitch =
    kChunk / 8 + 1;  // packs of a key; odd, so that neighbouring tokens meet other banks
constexpr int kFewHeads = 4, kManyHeads = 12;
constexpr int64_t kEnoughBlocks = 1024;  // below, the tokens of a row are split over blocks
constexpr int64_t kMaxSplits = 64;

struct Plan {
  int64_t blocks;
  int kv_heads, group;  // query heads of a KV head
  int head_shares;      // blocks that share a group
  int dim_shares;       // blocks that share the output's dimensions
  int splits;
  int64_t split_tiles;  // tiles of a split
  float* partial;       // [splits,R,Hq,D], or null: the block's result is the row's
  float* partial_lse;   // [splits,R,Hq]
  float scale;          // D^-0.5 * log2(e)
  bool packed_keys, paired_values;
};

using Four = Pack<float>;

template <class T, int kHeads>
DEVICE_KERNEL(kThreads)
attend_kernel(AttendParams p, Plan plan) {
  constexpr int kPerPart = kHeads / kParts;
  using Two = Pack<T, 4>;
  DEVICE_SHARED(Pack<T>, keys, kTile * kPitch);
  DEVICE_SHARED(Four, queries, kHeads * kChunk / 4);  // [head][dimension]
  DEVICE_SHARED(Four, weights, kTile * kHeads / 4);   // [token][head]: scores, then probabilities
  DEVICE_SHARED(int64_t, key_at, kTile);              // kMasked where the token is not live
  DEVICE_SHARED(int64_t, value_at, kTile);
  DEVICE_SHARED(float, top, kHeads);      // largest score so far
  DEVICE_SHARED(float, total, kHeads);    // sum of the weights so far
  DEVICE_SHARED(float, rescale, kHeads);  // of what was summed before this tile
  DEVICE_SHARED(uint32_t, poisoned, kHeads);
  DEVICE_SHARED(uint32_t, live_tokens, 2);  // of this tile and, the other one, of the previous

  const int thread = device::thread();
  int block = device::block_x();
  const int split = block % plan.splits;
  block /= plan.splits;
  const int dim_share = block % plan.dim_shares;
  block /= plan.dim_shares;
  const int share = block % plan.head_shares;
  block /= plan.head_shares;
  const int kv_head = block % plan.kv_heads, row = block / plan.kv_heads;
  if (p.served && p.served[int64_t(row) * plan.kv_heads + kv_head]) return;
  const int first_head = kv_head * plan.group + share * kHeads;
  const int heads = device::min(kHeads, plan.group - share * kHeads);
  const int64_t dims = p.q.size[2], page_size = p.k_cache.size[1];
  const int64_t request = load_index(p.token_to_req, row);
  const bool valid_request = request >= 0 && request < p.block_table.size[0];

  const T* cached_keys = static_cast<const T*>(p.k_cache.data);
  const T* cached_values = static_cast<const T*>(p.v_cache.data);
  const int64_t tiles = (p.tokens.size[1] + kTile - 1) / kTile;
  const int64_t first_tile = split * plan.split_tiles;
  const int64_t end_tile =
      valid_request ? smaller(tiles, first_tile + plan.split_tiles) : first_tile;
  const int64_t dim =
      int64_t(dim_share) * kOutputDims + 2 * thread;  // this thread's first one of the output

  for (int h = thread; h < kHeads; h += kThreads) {
    top[h] = -device::infinity();
    total[h] = 0.0f;
    rescale[h] = 1.0f;
    poisoned[h] = 0;
  }
  if (thread < 2) live_tokens[thread] = 0;
  float sum[kHeads][2] = {};
  bool queries_staged = false;

  for (int64_t tile = first_tile; tile < end_tile; ++tile) {
    device::sync_block();  // the previous tile's readers are done
    if (thread < kTile) {
      const int64_t column = tile * kTile + thread;
      const int64_t listed = column < p.tokens.size[1] ? load_index(p.tokens, row, column) : -1;
      const int64_t page =
          listed < 0 ? -1
                     : live_page(p.block_table, request, listed / page_size, p.k_cache.size[0]);
      const int64_t place = listed % page_size;
      const bool live = page >= 0;
      key_at[thread] = live ? offset_of(p.k_cache, page, place, kv_head) : kMasked;
      value_at[thread] = live ? offset_of(p.v_cache, page, place, kv_head) : kMasked;
      if (live) device::atomic_add(&live_tokens[tile % 2], 1u);
      if (thread == 0) live_tokens[(tile + 1) % 2] = 0;
    }
    device::sync_block();
    if (live_tokens[tile % 2] == 0) continue;

    // Scores. The queries stay in shared memory for all tiles where they fit.
    const int token = thread % kTile, part = thread / kTile;
    float dot[kPerPart] = {};
    for (int64_t from = 0; from < dims; from += kChunk) {
      const int chunk = int(smaller(kChunk, dims - from)), packs = chunk / 8;
      if (from > 0) device::sync_block();  // the previous chunk's readers are done
      if (dims > kChunk || !queries_staged) {
        for (int i = thread; i < kHeads * chunk; i += kThreads) {
          const int h = i / chunk, d = i % chunk;
          queries[(h * kChunk + d) / 4].x[d % 4] =
              h < heads ? device::to_float(*element<const T>(p.q, row, first_head + h, from + d))
                        : 0.0f;
        }
        queries_staged = true;
      }
      for (int i = thread; i < kTile * packs; i += kThreads) {
        const int t = i / packs, at = t * kPitch + i % packs;
        const bool live = key_at[t] != kMasked;
        const int64_t d = from + i % packs * 8;
        if (plan.packed_keys) {
          device::copy_async16(&keys[at], live ? cached_keys + key_at[t] + d : cached_keys, live);
        } else {
          Pack<T> key{};
          if (live)
            for (int e = 0; e < 8; ++e)
              key.x[e] = cached_keys[key_at[t] + (d + e) * p.k_cache.stride[3]];
          keys[at] = key;
        }
      }
      device::copy_async_commit();
      device::copy_async_wait<0>();
      device::sync_block();
      const Pack<T>* key = device::data(keys) + token * kPitch;
      const Four* query = device::data(queries) + part * kPerPart * (kChunk / 4);
      float partial[kPerPart] = {};
      for (int i = 0; i < packs; ++i) {
        const Pack<T> eight = key[i];
        DEVICE_UNROLL
        for (int h = 0; h < kPerPart; ++h) {
          const Four low = query[h * (kChunk / 4) + 2 * i],
                     high = query[h * (kChunk / 4) + 2 * i + 1];
          DEVICE_UNROLL
          for (int e = 0; e < 4; ++e) {
            partial[h] += low.x[e] * device::to_float(eight.x[e]);
            partial[h] += high.x[e] * device::to_float(eight.x[e + 4]);
          }
        }
      }
      DEVICE_UNROLL
      for (int h = 0; h < kPerPart; ++h) dot[h] += partial[h];
    }
    DEVICE_UNROLL
    for (int h = 0; h < kPerPart; ++h) {
      // A score that is not finite makes the head NaN; -inf would silently drop the token.
      const bool finite = device::abs(dot[h]) < device::infinity();
      const int at = token * kHeads + part * kPerPart + h;
      weights[at / 4].x[at % 4] = finite ? dot[h] * plan.scale : device::nan();
    }
    device::sync_block();

    // Softmax, a wave a head. Weights of masked tokens are zeros, not 2^(-inf): the largest score
    // may be -inf too.
    for (int h = device::wave(); h < heads; h += device::waves()) {
      const int t = device::lane(), at = t * kHeads + h;
      const bool live = t < kTile && key_at[t] != kMasked;
      const float score = live ? float(weights[at / 4].x[at % 4]) : -device::infinity();
      const float before = top[h];
      const float now = device::max(before, device::wave_max(score));
      const float weight = live ? device::exp2(score - now) : 0.0f;
      const float added = device::wave_sum(weight);
      device::sync_wave();  // all lanes have read what lane 0 writes
      if (t < kTile) weights[at / 4].x[at % 4] = weight;
      if (t == 0) {
        rescale[h] = before == now ? 1.0f : device::exp2(before - now);
        total[h] = total[h] * rescale[h] + added;
        top[h] = now;
      }
    }
    device::sync_block();

    // Values: never loaded where the token is not live, because 0 * NaN is NaN.
    if (dim < dims) {
      DEVICE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        sum[h][0] *= rescale[h];
        sum[h][1] *= rescale[h];
      }
      const Four* weight = device::data(weights);
      for (int t0 = 0; t0 < kTile; t0 += kAhead) {
        Two ahead[kAhead];
        DEVICE_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          const int64_t at = value_at[t0 + i];
          ahead[i] = Two{};
          if (at == kMasked) continue;
          if (plan.paired_values) {
            ahead[i] = *reinterpret_cast<const Two*>(cached_values + at + dim);
          } else {
            ahead[i].x[0] = cached_values[at + dim * p.v_cache.stride[3]];
            ahead[i].x[1] = cached_values[at + (dim + 1) * p.v_cache.stride[3]];
          }
        }
        DEVICE_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          const float value[2] = {device::to_float(ahead[i].x[0]), device::to_float(ahead[i].x[1])};
          DEVICE_UNROLL
          for (int f = 0; f < kHeads / 4; ++f) {
            const Four w = weight[(t0 + i) * (kHeads / 4) + f];
            DEVICE_UNROLL
            for (int e = 0; e < 4; ++e) {
              sum[4 * f + e][0] += w.x[e] * value[0];
              sum[4 * f + e][1] += w.x[e] * value[1];
            }
          }
        }
      }
    }
  }

  // One element that is not finite makes its head NaN: all elements of this block, and the lse.
  device::sync_block();
  if (dim < dims) {
    DEVICE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) continue;
      for (int e = 0; e < 2; ++e) {
        sum[h][e] = total[h] == 0.0f ? 0.0f : device::divide(sum[h][e], total[h]);
        if (!(device::abs(sum[h][e]) < device::infinity())) device::atomic_or(&poisoned[h], 1u);
      }
    }
  }
  device::sync_block();
  const int64_t rows = p.q.size[0], all_heads = p.q.size[1];
  if (dim < dims) {
    DEVICE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) continue;
      for (int e = 0; e < 2; ++e) {
        const float value = poisoned[h] ? device::nan() : sum[h][e];
        if (plan.partial)
          plan.partial[((split * rows + row) * all_heads + first_head + h) * dims + dim + e] =
              value;
        else
          *element<T>(p.output, row, first_head + h, dim + e) = device::from_float<T>(value);
      }
    }
  }
  if (thread < heads && dim_share == 0) {
    const int h = thread;
    float lse = total[h] == 0.0f ? -device::infinity() : top[h] + device::log2(total[h]);
    if (poisoned[h]) lse = device::nan();
    if (plan.partial)
      plan.partial_lse[(split * rows + row) * all_heads + first_head + h] = lse;
    else if (p.lse.data)
      *element<float>(p.lse, row, first_head + h) = lse;
  }
}

// The same for the workspace query (no addresses yet) and for the run.
Plan make_plan(const AttendParams& p, device::Carver& carver) {
  const int64_t rows = p.q.size[0], heads = p.q.size[1], dims = p.q.size[2];
  if (dims % 8 != 0)
    throw device::Unsupported("the head dimension is " + std::to_string(dims) +
                              ": this kernel takes multiples of 8");
  Plan plan{};
  const int64_t kv_heads = p.k_cache.size[2], group = heads / kv_heads;
  const int64_t at_once = group <= kFewHeads ? kFewHeads : kManyHeads;
  const int64_t head_shares = (group + at_once - 1) / at_once;
  const int64_t dim_shares = (dims + kOutputDims - 1) / kOutputDims;
  const int64_t tiles = (p.tokens.size[1] + kTile - 1) / kTile;
  const int64_t unsplit = rows * kv_heads * head_shares * dim_shares;
  int64_t splits = unsplit > 0 ? (kEnoughBlocks + unsplit - 1) / unsplit : 1;
  if (p.served) splits = 1;  // the merge would write the rows that are served
  splits = std::min({splits, kMaxSplits, (tiles + 1) / 2});
  plan.split_tiles = (tiles + splits - 1) / splits;
  splits = (tiles + plan.split_tiles - 1) / plan.split_tiles;
  plan.blocks = unsplit * splits;
  blocks(plan.blocks);  // refuses more than fit a grid, so that all counts below fit an int
  plan.kv_heads = int(kv_heads);
  plan.group = int(group);
  plan.head_shares = int(head_shares);
  plan.dim_shares = int(dim_shares);
  plan.splits = int(splits);
  plan.scale = float(1.4426950408889634 / std::sqrt(double(dims)));
  if (plan.splits > 1) {
    plan.partial = carver.take<float>(uint64_t(splits * rows * heads * dims));
    plan.partial_lse = carver.take<float>(uint64_t(splits * rows * heads));
  }
  return plan;
}

template <class T>
void launch_heads(const AttendParams& p, const Plan& plan, void* stream) {
  const device::Grid grid = blocks(plan.blocks);
  if (plan.group <= kFewHeads)
    device::launch(attend_kernel<T, kFewHeads>, grid, kThreads, 0, stream, p, plan);
  else
    device::launch(attend_kernel<T, kManyHeads>, grid, kThreads, 0, stream, p, plan);
}

void launch_portable(const AttendParams& p, device::Carver& carver, void* stream) {
  Plan plan = make_plan(p, carver);
  const int64_t rows = p.q.size[0], heads = p.q.size[1], dims = p.q.size[2];
  if (rows == 0) return;
  plan.packed_keys = dense_runs(p.k_cache, 16);
  plan.paired_values = dense_runs(p.v_cache, 4);
  if (p.q.dtype == TK_BF16)
    launch_heads<bf16>(p, plan, stream);
  else
    launch_heads<f16>(p, plan, stream);
  if (plan.splits == 1) return;
  MergeParams merge{};
  merge.partial = dense(plan.partial, TK_F32, plan.splits, rows, heads, dims);
  merge.lse = dense(plan.partial_lse, TK_F32, plan.splits, rows, heads);
  merge.output = p.output;
  merge.merged_lse = p.lse;
  launch_merge(merge, stream);
}

constexpr Launch<AttendParams> kPortable{
    [](const AttendParams& p, device::Carver& carver) { make_plan(p, carver); }, launch_portable};

struct Attend {
  static constexpr const toolkit::Contract& contract = attend::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver carver(nullptr);
    make_plan(attend_params(args), carver);
    return carver.used();
  }
  static void run(const device::OpCall& call) {
    device::Carver carver(call.workspace);
    launch_portable(attend_params(call.args), carver, call.stream);
  }
};
DEVICE_OP(Attend)

}  // namespace

AttendParams attend_params(const toolkit::Args& args) {
  AttendParams p{};
  p.q = tensor_of<3>(args.tensor("q"));
  p.k_cache = tensor_of<4>(args.tensor("k_cache"));
  p.v_cache = tensor_of<4>(args.tensor("v_cache"));
  p.tokens = tensor_of<2>(args.tensor("logical_indices"));
  p.block_table = tensor_of<2>(args.tensor("block_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.output = tensor_of<3>(args.tensor("output"));
  if (const auto lse = args.find("lse")) p.lse = tensor_of<2>(lse);
  return p;
}

constinit Launch<AttendParams> tuned_attend{};  // before any file's start-up code runs

void plan_attend(const AttendParams& p, device::Carver& carver) {
  plan_best(tuned_attend, kPortable, p, carver);
}

void launch_attend(const AttendParams& p, device::Carver& carver, void* stream) {
  launch_best(tuned_attend, kPortable, p, carver, stream);
}

}  // namespace qsa
