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
#include "device/nvidia.h"
#include "qsa/attend.h"
#include "qsa/attend_gather.h"
#include "qsa/attend_short.h"
#include "qsa/attend_splits.h"
#include "qsa/attend_union.h"

namespace qsa {
namespace {

// kFew: at most eight heads, so the lower half of all rows is padding.
template <class T, int kDims, int kWaves, int kSlots, bool kFew>
DEVICE_KERNEL_BLOCKS(kWaves* device::kWave, kWavesOfProcessor / kWaves)
attend_kernel(Plan plan, AttendParams p) {
  using At = Layout<kDims, kWaves, kSlots>;
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
  device::allow_next();  // the merge, which waits for the end of this one
  const Part at(plan);
  const int row = at.row, kv_head = at.kv_head, split = at.split, unit = at.unit;
  if (plan.served && plan.served[unit]) return;
  const int first_head = kv_head * plan.group;

  Chunk* const places = queries + At::kPlaces + wave * At::kPlacesOfWave;
  Chunk* const value_places = places + device::kWave / 4;

  // Each token is read once a row; what else the L2 holds is worth more, and dirty lines would
  // have to be written back to make room.
  const uint64_t policy = device::l2_evict_first();
  Lookup lookup;
  const int first = split * plan.split_tokens;
  const int end = device::min(plan.width, first + plan.split_tokens);
  const int share = (end - first + kWaves - 1) / kWaves;
  const int own_first = first + wave * share;
  lookup.tokens = plan.tokens.words + row * plan.tokens.row;
  lookup.end = device::min(end, own_first + share);
  lookup.column = own_first + lane;
  lookup.next_token(plan);
  Id request;
  request.load(plan.requests + row * plan.request_step, plan.wide_requests);
  uint64_t arrived = 0;
  const bool counts = plan.splits > 1 && !plan.merge_launch && thread == 0;
  if (counts) arrived = device::atomic_or(&plan.arrivals[unit], 0);

  const bool valid = request.below(plan.table_rows);
  const int tokens = valid ? lookup.end - own_first : 0;
  const int tiles = tokens > 0 ? (tokens + kTile - 1) / kTile : 0;
  if (!valid) lookup.end = 0, lookup.token = Id{};
  lookup.pages = plan.pages.words + (valid ? request.low : 0) * plan.pages.row;
  lookup.next_page(plan);
  lookup.next_token(plan);

  Queries<kRow, kThreads, kHalves> of_heads;
  of_heads.load(plan, row, first_head);
  lookup.next_tiles(plan, places[0].x);

  const Chunk* const keys = device::keep_whole(plan.keys + kv_head * plan.key_head + lane % kRow);
  const Chunk* const values =
      device::keep_whole(plan.values + kv_head * plan.value_head + lane % kRow);
  uint64_t live_tiles = 0;  // kTile bits a tile of keys, the latest one lowest
  DEVICE_UNROLL
  for (int step = 0; step < kSlots; ++step) {
    const int tile = step / 2, first_lane = tile % kTiles * kTile;
    const bool of_keys = step % 2 == 0;
    if (kAhead >= kTiles && of_keys && tile > 0 && first_lane == 0)
      lookup.next_tiles(plan, places[0].x);
    if (tile < tiles)
      copy_tile<kRow>(ring + step * At::kSlot, of_keys ? keys : values,
                      (of_keys ? places : value_places) + first_lane / 4, lookup.live >> first_lane,
                      policy);
    if (of_keys) live_tiles = live_tiles << kTile | (lookup.live >> first_lane & 0xffff);
    device::copy_async_commit();
  }
  // The count of done blocks begins with this call's tag. The workspace holds anything before the
  // first run, and the count of the last replay of a graph (which ends as it began) thereafter.
  if (counts && arrived - plan.tag >= uint64_t(plan.splits))
    device::atomic_cas(&plan.arrivals[unit], arrived, plan.tag);
  of_heads.store(queries);
  device::sync_block();

  Statistics* const of_waves = reinterpret_cast<Statistics*>(queries + At::kStatistics);
  constexpr int kQuads = kDims / 4;  // of a head's output
  const int64_t at_split = (int64_t(unit) * plan.splits + split) * plan.group;
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
    float dot[2][2][4] = {};
    multiply_keys<T, kRow>(dot, queries, key);
    device::sync_wave();  // all lanes have read the keys
    const uint32_t live = uint32_t(live_tiles >> kAhead * kTile);
    const int value_lane = (tile + kAhead) % kTiles * kTile;
    if (tile + kAhead < tiles)
      copy_tile<kRow>(key, values, value_places + value_lane / 4, lookup.live >> value_lane,
                      policy);
    device::copy_async_commit();

    Scores<kHalves> scores(dot, live, plan.scale);
    bool grown = false;
    DEVICE_UNROLL
    for (int half = 0; half < kHalves; ++half)
      grown = grown || scores.most[half] > top[half] + kSlack;
    if (device::any(grown)) {
      DEVICE_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        scores.share_most(half);
        const float now = device::max(top[half], scores.most[half]);
        const float rescale = now == top[half] ? 1.0f : device::exp2_fast(top[half] - now);
        top[half] = now;
        if (tile == 0) continue;  // the sums are zeros
        total[half] *= rescale;
        DEVICE_UNROLL
        for (int n = 0; n < kRow; ++n) {
          output[n][2 * half] *= rescale;
          output[n][2 * half + 1] *= rescale;
        }
      }
    }
    uint32_t weights[4];
    scores.template weigh<T>(weights, top, total);

    device::copy_async_wait<kSlots - 1>();
    device::sync_wave();
    const int matrix = lane / 8, line = lane % 8;
    const Chunk* of_values[4];
    DEVICE_UNROLL
    for (int i = 0; i < 4; ++i)
      of_values[i] =
          value + (matrix % 2 * 8 + line) * kRow + ((2 * i + matrix / 2) ^ swizzle(line));
    DEVICE_UNROLL
    for (int n = 0; n < kRow; n += 2) {
      uint32_t v[4];
      device::load_matrices_transposed(v, of_values[n / 2 % 4], n / 8 * 8 * int(sizeof(Chunk)));
      device::multiply_16x8x16<T>(output[n], weights, {v[0], v[1]});
      device::multiply_16x8x16<T>(output[n + 1], weights, {v[2], v[3]});
    }
    device::sync_wave();  // all lanes have read the values
    const int next = tile + kAhead + 1, first_lane = next % kTiles * kTile;
    if (next < tiles) {
      if (first_lane == 0) lookup.next_tiles(plan, places[0].x);
      copy_tile<kRow>(value, keys, places + first_lane / 4, lookup.live >> first_lane, policy);
    }
    live_tiles = live_tiles << kTile | (lookup.live >> first_lane & 0xffff);
    device::copy_async_commit();
  }
  device::copy_async_wait<0>();
  device::sync_wave();

  // The waves' results meet in shared memory. One output that is not finite makes its head NaN: it
  // enters the sum of the weights, as its product with zero.
  float* const own = reinterpret_cast<float*>(ring);  // [kHeads][kPitch]
  DEVICE_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    const int head = half * 8 + group;
    float not_finite[2] = {};
    DEVICE_UNROLL
    for (int n = 0; n < kRow; ++n) {
      const float a = output[n][2 * half], b = output[n][2 * half + 1];
      not_finite[0] = device::fma(a, 0.0f, not_finite[0]);
      not_finite[1] = device::fma(b, 0.0f, not_finite[1]);
      *reinterpret_cast<Pack<float, 8>*>(own + head * At::kPitch + n * 8 + member * 2) = {a, b};
    }
    total[half] += not_finite[0] + not_finite[1];
    total[half] += device::shuffle_xor(total[half], 1);
    total[half] += device::shuffle_xor(total[half], 2);
    if (member == 0) of_waves[wave * kHeads + head] = {top[half], total[half]};
  }
  device::sync_block();

  if (thread < plan.group) {  // a thread a head: the factor of each wave, in place of its top
    Statistics all{-device::infinity(), 0.0f};
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w)
      all.top = device::max(all.top, of_waves[w * kHeads + thread].top);
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w) {
      const Statistics part = of_waves[w * kHeads + thread];
      const float factor = weight_of(part, all.top);
      all.total = device::fma(part.total, factor, all.total);
      of_waves[w * kHeads + thread].top = factor;
    }
    if (plan.splits > 1) {
      plan.statistics[at_split + thread] = all;
    } else {
      of_waves[thread].total = inverse(all.total);
      store_lse(p, row, first_head + thread, all.top, all.total);
    }
  }
  device::sync_block();
  DEVICE_ROLLED
  for (int i = thread; i < plan.group * kQuads; i += kThreads) {
    const int head = i / kQuads, dim = i % kQuads * 4;
    const float* const of_first = reinterpret_cast<const float*>(queries + At::kRings);
    Four sum{};
    DEVICE_UNROLL
    for (int w = 0; w < kWaves; ++w)
      add(sum,
          *reinterpret_cast<const Four*>(of_first + w * kSlots * At::kSlot * 4 + head * At::kPitch +
                                         dim),
          of_waves[w * kHeads + head].top);
    if (plan.splits > 1)
      *reinterpret_cast<Four*>(plan.partial + (at_split + head) * kDims + dim) = sum;
    else
      store_four<T>(p, plan, row, first_head + head, dim, sum, of_waves[head].total);
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
  DEVICE_ROLLED
  for (int i = thread; i < plan.splits * plan.group; i += kThreads)
    parts[i] = plan.statistics[base + i];
  device::sync_block();
  if (thread < plan.group) {  // as above, of the splits
    Statistics all{-device::infinity(), 0.0f};
    DEVICE_ROLLED
    for (int s = 0; s < plan.splits; ++s)
      all.top = device::max(all.top, parts[s * plan.group + thread].top);
    DEVICE_ROLLED
    for (int s = 0; s < plan.splits; ++s) {
      const Statistics part = parts[s * plan.group + thread];
      const float factor = weight_of(part, all.top);
      all.total = device::fma(part.total, factor, all.total);
      parts[s * plan.group + thread].top = factor;
    }
    parts[thread].total = inverse(all.total);
    store_lse(p, row, first_head + thread, all.top, all.total);
  }
  device::sync_block();
  // All of a thread's loads of two splits come before their sums: one alone would wait for memory
  // each time.
  constexpr int kMine = (kHalves * 8 * kQuads + kThreads - 1) / kThreads;
  const int step = plan.group * kDims;
  const float* from = plan.partial + base * kDims;
  Four sums[kMine] = {};
  DEVICE_ROLLED
  for (int s = 0; s < plan.splits; s += 2) {
    Four of[2][kMine];
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (s + e >= plan.splits) break;
      DEVICE_UNROLL
      for (int m = 0; m < kMine; ++m) {
        const int i = device::min(thread + m * kThreads, plan.group * kQuads - 1);
        of[e][m] = *reinterpret_cast<const Four*>(from + e * step + i * 4);
      }
    }
    DEVICE_UNROLL
    for (int e = 0; e < 2; ++e) {
      if (s + e >= plan.splits) break;
      DEVICE_UNROLL
      for (int m = 0; m < kMine; ++m) {
        const int head = device::min((thread + m * kThreads) / kQuads, plan.group - 1);
        add(sums[m], of[e][m], parts[(s + e) * plan.group + head].top);
      }
    }
    from += 2 * step;
  }
  DEVICE_UNROLL
  for (int m = 0; m < kMine; ++m) {
    const int i = thread + m * kThreads, head = i / kQuads, dim = i % kQuads * 4;
    if (head < plan.group)
      store_four<T>(p, plan, row, first_head + head, dim, sums[m], parts[head].total);
  }
}

template <class T, int kDims, int kWaves, int kSlots, bool kFew>
void launch_kernel(const AttendParams& p, const Plan& plan, void* stream) {
  device::launch(attend_kernel<T, kDims, kWaves, kSlots, kFew>,
                 blocks(p.q.size[0] * plan.kv_heads * plan.splits), kWaves * device::kWave,
                 Layout<kDims, kWaves, kSlots>::kChunks * sizeof(Chunk), stream, plan, p);
}

template <class T, int kDims, bool kFew>
void launch_short_kernel(const AttendParams& p, const Plan& plan, void* stream) {
  device::launch(attend_short_kernel<T, kDims, kFew>,
                 blocks(p.q.size[0] * plan.kv_heads * plan.splits), kShortWaves * device::kWave,
                 ShortLayout<kDims>::kChunks * sizeof(Chunk), stream, plan);
}

template <class T, int kMergeDims, int kPerSlice>
void launch_merge_kernel(const AttendParams& p, const Plan& plan, void* stream) {
  device::launch_overlapping(merge_splits_kernel<T, kMergeDims, kPerSlice>,
                             blocks(p.q.size[0] * p.q.size[1] * (p.q.size[2] / kMergeDims)),
                             kMergeThreads, 0, stream, plan, p);
}

template <class T, int kDims>
void launch_kernels(const AttendParams& p, const Plan& plan, void* stream) {
  constexpr int kSlots = kSlotsOf<kDims>;
  const bool few = plan.group <= 8;
  if (plan.short_tiles)
    few ? launch_short_kernel<T, kDims, true>(p, plan, stream)
        : launch_short_kernel<T, kDims, false>(p, plan, stream);
  else if (plan.waves == 8)
    few ? launch_kernel<T, kDims, 8, kSlots, true>(p, plan, stream)
        : launch_kernel<T, kDims, 8, kSlots, false>(p, plan, stream);
  else
    few ? launch_kernel<T, kDims, 4, kSlots, true>(p, plan, stream)
        : launch_kernel<T, kDims, 4, kSlots, false>(p, plan, stream);
  if (plan.splits == 1 || !plan.merge_launch) return;
  if (plan.splits > 40)
    launch_merge_kernel<T, 64, 16>(p, plan, stream);
  else if (plan.splits > 16)
    launch_merge_kernel<T, 64, 5>(p, plan, stream);
  else
    launch_merge_kernel<T, 128, 4>(p, plan, stream);
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
