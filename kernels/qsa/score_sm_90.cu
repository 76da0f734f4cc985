// SPDX-License-Identifier: Apache-2.0
// qsa.score for few rows a request (decode, speculative): whole pages by bulk copies, on NVIDIA
// GPUs from sm_90 on. What it does not serve is for score_sm_80.cu. Measurements: score.md.
//
// A wave works alone, without a barrier of the block: it walks over steps of 16 keys of its tile of
// 1 or 4 rows, and one lane has the next steps copied into a ring of its own in shared memory, 4 KB
// (at 128 elements) by one instruction. What counts beside bytes in flight is how few instructions
// come before the first copy: each is fetched cold and issued by every wave. Hence the narrow
// parameters, and the conditions on what is served.
//
// Keys are the B side of the matrix instruction, as in score_sm_80.cu; the queries' fragments stay
// in registers.
#include <algorithm>

#include "device/nvidia.h"
#include "qsa/launches.h"
#include "qsa/score.h"
#include "qsa/score_fragments.h"
#include "qsa/score_pages.h"

namespace qsa {
namespace {

using device::Words4;
using score_fragments::key_of;
using score_fragments::pieces_of;

constexpr int kWaves = 8;   // of a block
constexpr int kRing = 2;    // steps of a wave whose copies are on their way
constexpr int kBlocks = 2;  // of a multiprocessor

template <class T, int kDims, int kRows>
DEVICE_KERNEL_BLOCKS(kWaves* device::kWave, kBlocks)
score_pages_kernel(PagesParams p) {
  using Four = Pack<float>;
  constexpr int kPieces = pieces_of(kDims);
  constexpr uint32_t kWave = device::kWave, kKeyBytes = kDims * 2, kStepBytes = kKeys * kKeyBytes;
  constexpr uint32_t kBarrierBytes = sizeof(device::BulkBarrier);
  DEVICE_DYNAMIC_SHARED(Words4, ring);
  DEVICE_SHARED(device::BulkBarrier, barriers, kWaves * kRing);
  const uint32_t thread = uint32_t(device::thread()), lane = thread % kWave, wave = thread / kWave;
  const uint32_t group = lane / 4, member = lane % 4;
  const uint32_t first_row = uint32_t(device::block_x()) * kRows;
  const uint32_t rows = kRows == 1 || p.rows - first_row > kRows ? kRows : p.rows - first_row;
  const uint32_t first_step = uint32_t(device::block_y()) * kWaves + wave;
  const uint32_t stride = uint32_t(device::blocks_y()) * kWaves;
  const auto row_of = [&](uint32_t at) { return first_row + (at < rows ? at : rows - 1); };

  // Two trips to memory until the first keys are here: everything small at once, with the request
  // guessed from the batch's shape, then pages.
  const uint32_t own_row = row_of(lane);
  uint32_t expected = p.by_rows_of_request(first_row);
  const uint32_t request = p.request_of[own_row * p.request_stride];
  const uint32_t position = p.positions[own_row * p.position_stride];
  const auto full = device::shared_address(device::data(barriers)) + wave * (kRing * kBarrierBytes);
  const auto slots = device::shared_address(device::data(ring)) + wave * (kRing * kStepBytes);
  if (lane < kRing) device::bulk_begin(full + lane * kBarrierBytes);
  device::bulk_begun();
  device::sync_wave();
  const uint64_t policy = device::l2_evict_first();
  Words4 even[kPieces], odd[kPieces];  // heads; rows beyond the last are the last again

  // Row `group` of the A side is an even head, row group + 8 the odd one after it.
  uint32_t query[kPieces][2][4];
  bool asked_queries = false, have_queries = false;
  const uint32_t lane_key = (group / 2 * 4 + group % 2) * kKeyBytes + member * 16;
  uint32_t begin = 0, slot = 0, put_slot = 0, parity = 0;
  // Each run of rows with one request; once more where the request was not the expected one.
  DEVICE_ROLLED
  for (;;) {
    // The page id of this lane's step of a batch of 32, and where its keys begin in there.
    uint32_t id, at_slot;
    const auto ask = [&](uint32_t batch) {
      const uint32_t column = (first_step + (batch + lane) * stride) * kKeys;
      const uint32_t page = p.by_page_size(column & INT32_MAX);
      at_slot = column - page * p.page_size;
      id = ~uint32_t{0};
      if (expected < p.requests && page < p.width)
        id = p.table[expected * p.table_row + page * p.table_column];
    };
    ask(0);
    uint32_t length = expected < p.requests ? p.lengths[expected * p.length_stride] : 0;
    if (!asked_queries) {
      asked_queries = true;
      // Through the L1: with one row, all waves read the same.
      const uint16_t* from =
          p.q + uint64_t{row_of(group % 4)} * p.q_row + lane / 16 * 2 * p.q_head + member * 8;
      DEVICE_UNROLL
      for (int j = 0; j < kPieces; ++j) {
        even[j] = device::load16<Words4>(from + j * 32);
        odd[j] = device::load16<Words4>(from + p.q_head + j * 32);
      }
    }
    if (const uint32_t here = device::shuffle(request, int(begin)); here != expected) {
      expected = here;
      if (here < p.requests) continue;
      length = 0;
    }
    const int before_end = device::max(int(length), 0) - 1;
    const int tokens = device::max(device::min(int(position), before_end), -1) + 1;
    const uint32_t seen = p.by_ratio(uint32_t(tokens));
    const uint32_t visible = seen < p.columns ? seen : p.columns;
    // Rows [begin, end) have this request; `most` is the most that one of them sees. Without a
    // loop: a jump into code that was not fetched costs a trip to memory of its own.
    uint32_t end = begin + 1, most = visible;
    if (kRows > 1) {
      const bool other = lane >= rows || (lane >= begin && request != expected);
      end = uint32_t(device::first_lane(device::ballot(other)));
      most = lane >= begin && lane < end ? visible : 0;
      DEVICE_UNROLL
      for (int x = 1; x < kRows; x *= 2) {
        const uint32_t of_other = device::shuffle_xor(most, x);
        most = of_other > most ? of_other : most;
      }
      most = device::shuffle(most, 0);
    }
    if (first_step == 0 && lane >= begin && lane < end)
      p.visible[own_row * p.visible_stride] = seen;
    const uint32_t steps = (most + kKeys - 1) / kKeys;
    float* logits = p.logits + uint64_t{first_row} * p.logits_row;

    // Starts the copy of the next step; the lane that knows its page does. `dead`: which steps of
    // the batch, and of the one before, have no page.
    const uint16_t* from = nullptr;
    uint32_t dead = 0, dead_before = 0, puts = 0;
    const auto put = [&] {
      if (first_step + puts * stride >= steps) return;
      if (puts % kWave == 0) {
        const bool live = id < p.pages;
        dead_before = dead;
        dead = uint32_t(device::ballot(!live));
        from = live ? p.keys + uint64_t{id} * p.page_stride + at_slot * kDims : nullptr;
        ask(puts + kWave);
      }
      if (lane == puts % kWave) {
        const auto barrier = full + put_slot * kBarrierBytes;
        device::bulk_announce(barrier, from ? kStepBytes : 0);
        if (from)
          device::bulk_copy(slots + put_slot * kStepBytes, from, kStepBytes, barrier, policy);
      }
      if (++put_slot == kRing) put_slot = 0;
      ++puts;
    };

    const uint32_t row = kRows == 1 ? 0 : group;
    const uint32_t sees = kRows == 1 ? visible : uint32_t(device::shuffle(visible, int(group % 4)));
    const bool stores = group < kRows && group >= begin && group < end;
    // The first copy starts before the loop's code has to be here. The others but one are started by rounds that do nothing
    // else: one loop for both is half the code.
    put();
    DEVICE_ROLLED
    for (int i = 1 - kRing; i < 0 || first_step + uint32_t(i) * stride < steps; ++i) {
      float dot[2][4] = {};
      if (i >= 0) {
        device::bulk_wait(full + slot * kBarrierBytes, parity);
        const auto key = slots + slot * kStepBytes + lane_key;
        DEVICE_UNROLL
        for (int j = 0; j < kPieces; ++j) {
          Words4 k[2];
          DEVICE_UNROLL
          for (int n = 0; n < 2; ++n)
            k[n] = device::load_shared16(key + (uint32_t(key_of(n, 0)) * kKeyBytes + j * 64u));
          DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            DEVICE_UNROLL
            for (int n = 0; n < 2; ++n)
              device::multiply_16x8x16<T>(dot[n], query[j][half],
                                          {k[n].x[2 * half], k[n].x[2 * half + 1]});
          }
        }
        if (++slot == kRing) {
          slot = 0;
          parity ^= 1;
        }
      }
      const bool of_before = uint32_t(i) / kWave != (puts - 1) / kWave;
      const bool masked = (of_before ? dead_before : dead) >> (uint32_t(i) % kWave) & 1;
      device::sync_wave();  // all lanes have read their keys: the slot is free
      put();
      if (i < -1) continue;
      if (i < 0) {
        if (p.fill) {
          const float low = -device::infinity();
          DEVICE_ROLLED
          for (uint32_t c = steps * kKeys + (first_step * kWave + lane) * 4; c < p.columns;
               c += stride * (kWave * 4))
            DEVICE_ROLLED
          for (uint32_t r = begin; r < end; ++r)
            device::store16(logits + uint64_t{r} * p.logits_row + c, Four{low, low, low, low});
        }
        if (!have_queries) {
          have_queries = true;
          // A zero that the compiler does not know: else it keeps the registers as they were loaded
          // and moves them into place before each multiplication.
          DEVICE_UNROLL
          for (int j = 0; j < kPieces; ++j) {
            DEVICE_UNROLL
            for (int w = 0; w < 8; ++w)
              query[j][w / 4][w % 4] = (w % 2 ? odd[j] : even[j]).x[w / 2] ^ p.zero;
          }
        }
        continue;
      }
      float sum[4];
      const uint32_t first = (first_step + uint32_t(i) * stride) * kKeys + 4 * member;
      DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float* d = dot[e / 2];
        // The maximum drops a NaN: such a head adds nothing.
        sum[e] = device::max(d[e % 2], 0.0f) + device::max(d[2 + e % 2], 0.0f);
        sum[e] = (sum[e] + device::shuffle_xor(sum[e], 16)) * p.inverse;
        if (first + e >= sees || masked) sum[e] = -device::infinity();
      }
      if (stores && first < p.columns)
        device::store16(logits + uint64_t{row} * p.logits_row + first,
                        Four{sum[0], sum[1], sum[2], sum[3]});
    }
    if (end == rows) return;
    begin = end;
    expected = device::shuffle(request, int(begin));
  }
}

template <class T, int kDims, int kRows>
void launch_rows(const ScoreParams& p, void* stream) {
  const int64_t steps = (p.logits.size[1] + kKeys - 1) / kKeys;
  const int64_t tiles = (p.q.size[0] + kRows - 1) / kRows;
  const int64_t resident = int64_t{kBlocks} * device::multiprocessors();
  const int64_t parts =
      std::max<int64_t>(std::min(resident / tiles, (steps + kWaves - 1) / kWaves), 1);
  device::launch(score_pages_kernel<T, kDims, kRows>, device::Grid{tiles, parts, 1},
                 kWaves * device::kWave, kWaves * kRing * kKeys * kDims * 2, stream, narrow(p));
}
template <class T>
void launch_type(const ScoreParams& p, void* stream) {
  const bool single = p.q.size[0] <= p.page_table.size[0], narrow_heads = p.q.size[2] == 64;
  if (narrow_heads)
    single ? launch_rows<T, 64, 1>(p, stream) : launch_rows<T, 64, 4>(p, stream);
  else
    single ? launch_rows<T, 128, 1>(p, stream) : launch_rows<T, 128, 4>(p, stream);
}

void refuse(const ScoreParams& p, device::Carver&) {
  if (const char* why = refusal(p)) throw device::Unsupported(std::string("because ") + why);
}
void launch_pages(const ScoreParams& p, device::Carver& nothing, void* stream) {
  refuse(p, nothing);
  if (p.q.size[0] == 0) return;
  p.q.dtype == TK_BF16 ? launch_type<bf16>(p, stream) : launch_type<f16>(p, stream);
}

struct ScorePages {
  static constexpr const toolkit::Contract& contract = score::contract;
  static constexpr const char* implementation = "sm_90";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver nothing(nullptr);
    refuse(score_params(args), nothing);
    return 0;
  }
  static void run(const device::OpCall& call) {
    device::Carver nothing(nullptr);
    launch_pages(score_params(call.args), nothing, call.stream);
  }
};
DEVICE_OP(ScorePages)

const bool offered = [] {
  score_of_pages = {refuse, launch_pages};
  return true;
}();

}  // namespace
}  // namespace qsa
