// SPDX-License-Identifier: Apache-2.0
// qsa.score on matrix instructions, for up to 4 heads of 32, 64 or 128 elements in bf16 or f16:
// decode, speculative and prefill by one kernel.
//
// A block holds the queries of a tile of rows in shared memory and each of its waves walks over
// steps of 32 keys. The keys are the M side and go from global memory straight into the registers
// that the matrix instruction reads: the order of k inside a dot product is free as long as queries
// and keys agree on it, so a lane owns 16-byte pieces of its keys. Nothing in the loop needs a
// barrier; the waves of a multiprocessor hide each other's loads.
//
// The columns of the N side are ordered so that one lane ends up with all four heads of a row, and
// the keys of a step so that it ends up with four neighbouring keys: the sum over heads needs no
// shuffle and each row is written in runs of 128 bytes.
//
// Rows of a tile that follow each other and belong to one request share a pass over its keys; what
// belongs together is only known on the device. The steps of a pass, and the columns beyond them
// that are only filled, are dealt to the blocks of a tile in turn, so the work follows the visible
// keys and never the capacity of the page table.
#include <algorithm>

#include "device/nvidia.h"
#include "qsa/launches.h"
#include "qsa/score.h"

namespace qsa {
namespace {

using device::Words4;

constexpr int kHeads = 4;     // at most; missing ones are zeros
constexpr int kLaneKeys = 4;  // neighbouring keys of a lane
constexpr int kStep = 8 * kLaneKeys;
constexpr int kQuad = 4;  // rows whose 16 columns are multiplied at once
// 16-byte pieces of a key that one lane holds: member, member + 4, ...
constexpr int pieces_of(int dims) { return dims / 32; }
// The queries of four rows, in 16-byte words.
constexpr int quad_words(int dims) { return kQuad * kHeads * dims / 8; }
constexpr int kWaves = 8, kThreads = kWaves * device::kWave;
static_assert(kStep == device::kWave, "a lane finds the address of one key of a step");

template <class T, class U>
DEVICE_FUNCTION auto round_up(T value, U to) {
  return (value + to - 1) / to * to;
}

// Rows [begin, end) of a tile with one request, and the columns that one of them sees.
struct Run {
  int begin, end;
  int64_t request;
  int shown;
};

// What a wave multiplies next: the keys of `step` with the queries of `run`.
struct Cursor {
  Run run;
  int step;
};

// Offset of this lane's key of a step, or kMasked.
DEVICE_FUNCTION int64_t key_offset(const ScoreParams& p, int64_t request, int step) {
  if (request < 0 || request >= p.page_table.size[0]) return kMasked;
  const unsigned column = unsigned(step) * kStep + unsigned(device::lane());
  const unsigned page_size = unsigned(p.k_cache.size[1]);
  const int64_t page = live_page(p.page_table, request, column / page_size, p.k_cache.size[0]);
  return page < 0 ? kMasked : offset_of(p.k_cache, page, column % page_size);
}

// Copies the queries of a tile in the order in which lanes read them as fragments: [quad][pair of
// heads][piece][lane]. Column `group` of a pair is head group % 2 of row group / 2.
template <int kDims, int kRows>
DEVICE_FUNCTION void copy_queries(const ScoreParams& p, int64_t first_row, int rows,
                                  Words4* query) {
  constexpr int kPieces = pieces_of(kDims), kQuadWords = quad_words(kDims);
  for (int i = device::thread(); i < kRows / kQuad * kQuadWords; i += kThreads) {
    const int lane = i % device::kWave, piece = i / device::kWave % kPieces;
    const int pair = i / device::kWave / kPieces % 2, quad = i / kQuadWords;
    const int row = quad * kQuad + lane / 4 / 2, head = 2 * pair + lane / 4 % 2;
    const bool valid = row < rows && head < p.q.size[1];
    const int64_t at =
        valid ? offset_of(p.q, first_row + row, head, (lane % 4 + 4 * piece) * 8) : 0;
    device::copy_async16(query + i, static_cast<const uint16_t*>(p.q.data) + at, valid);
  }
  device::copy_async_commit();
}

template <class T, int kDims, int kRows>
DEVICE_KERNEL_BLOCKS(kThreads, 2)
score_tile_kernel(ScoreParams p, int64_t parts, float inverse, bool packed) {
  using Four = Pack<float>;
  constexpr int kPieces = pieces_of(kDims), kQuadWords = quad_words(kDims);
  DEVICE_DYNAMIC_SHARED(Words4, query);
  DEVICE_SHARED(int64_t, request_of, kRows);
  DEVICE_SHARED(int, visible_of, kRows);
  const int thread = device::thread(), group = device::lane() / 4, member = device::lane() % 4;
  // The last rows of a prefill see most: they go first.
  const int64_t tile = (device::blocks_x() - 1 - device::block_x()) / parts;
  const int part = int((device::blocks_x() - 1 - device::block_x()) % parts);
  const int64_t first_row = tile * kRows;
  const int rows = int(smaller(kRows, p.q.size[0] - first_row));
  const int columns = int(p.logits.size[1]);
  const int first_step = part * kWaves + device::wave(), stride = int(parts) * kWaves;

  copy_queries<kDims, kRows>(p, first_row, rows, device::data(query));
  // Page ids of the first step are asked for before it is known whether a row sees it: one trip to
  // memory less.
  int64_t next_at = key_offset(p, load_index(p.token_to_req, first_row), first_step);
  if (thread < rows) {
    const int64_t row = first_row + thread, request = load_index(p.token_to_req, row);
    const int64_t visible =
        request < 0 || request >= p.page_table.size[0]
            ? 0
            : smaller(groups_in(tokens_through(load_index(p.positions, row)), p.ratio),
                      groups_in(length_of(p.lengths, request), p.ratio));
    request_of[thread] = request;
    visible_of[thread] = int(smaller(visible, columns));
    if (part == 0) *element<int32_t>(p.visible, row) = int32_t(smaller(visible, INT32_MAX));
  }
  device::copy_async_wait<0>();
  device::sync_block();

  const int64_t* requests = device::data(request_of);
  const int* visible = device::data(visible_of);
  const auto run_from = [&](int begin) {
    Run run{begin, begin, requests[begin], 0};
    for (; run.end < rows && requests[run.end] == run.request; ++run.end)
      run.shown = visible[run.end] > run.shown ? visible[run.end] : run.shown;
    return run;
  };
  const auto skip_to_work = [&](Cursor c) {  // step < 0: no more
    while (int64_t{c.step} * kStep >= c.run.shown) {
      if (c.run.end >= rows) return Cursor{c.run, -1};
      c = {run_from(c.run.end), first_step};
    }
    return c;
  };

  float* logits = element<float>(p.logits, first_row, 0);
  const int64_t pitch = p.logits.stride[0];
  if (p.fill) {
    for (int begin = 0; begin < rows;) {
      const Run run = run_from(begin);
      begin = run.end;
      const int from = round_up(run.shown, kStep), per = packed ? Four::kSize : 1;
      for (int64_t c = from + (int64_t{part} * kThreads + thread) * per; c < columns;
           c += parts * kThreads * per)
        for (int row = run.begin; row < run.end; ++row) {
          float* to = logits + row * pitch + c;
          const float low = -device::infinity();
          if (packed)
            *reinterpret_cast<Four*>(to) = {low, low, low, low};
          else
            *to = low;
        }
    }
  }

  Cursor next = skip_to_work({run_from(0), first_step});
  if (next.step >= 0 && !(next.run.begin == 0 && next.step == first_step))
    next_at = key_offset(p, next.run.request, next.step);
  while (next.step >= 0) {
    const Cursor now = next;
    const int64_t at = next_at;
    next = skip_to_work({now.run, now.step + stride});
    if (next.step >= 0) next_at = key_offset(p, next.run.request, next.step);

    Words4 key[kLaneKeys][kPieces];
    bool live[kLaneKeys];
    DEVICE_UNROLL
    for (int i = 0; i < kLaneKeys; ++i) {
      const int64_t offset = device::shuffle(at, kLaneKeys * group + i);
      live[i] = offset != kMasked;
      // A key of no page is replaced by the first of the cache, which is always there.
      const T* from = static_cast<const T*>(p.k_cache.data) + (live[i] ? offset : 0) + member * 8;
      DEVICE_UNROLL
      for (int j = 0; j < kPieces; ++j) key[i][j] = device::load_once16(from + j * kDims / kPieces);
    }

    const int column = now.step * kStep + kLaneKeys * group;
    for (int quad = now.run.begin / kQuad; quad * kQuad < now.run.end; ++quad) {
      const Words4* q = device::data(query) + quad * kQuadWords + device::lane();
      float dot[2][2][4] = {};  // keys 0, 1 and 2, 3 of the lane; heads 0, 1 and 2, 3
      DEVICE_UNROLL
      for (int j = 0; j < kPieces; ++j) {
        DEVICE_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          const Words4 b = q[(pair * kPieces + j) * device::kWave];
          DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            DEVICE_UNROLL
            for (int m = 0; m < 2; ++m) {
              const Words4 &low = key[2 * m][j], &high = key[2 * m + 1][j];
              device::multiply_16x8x16<T>(
                  dot[m][pair],
                  {low.x[2 * half], high.x[2 * half], low.x[2 * half + 1], high.x[2 * half + 1]},
                  {b.x[2 * half], b.x[2 * half + 1]});
            }
          }
        }
      }
      const int row = quad * kQuad + member;
      if (row < now.run.begin || row >= now.run.end) continue;
      const int seen = visible[row];
      Four out;
      DEVICE_UNROLL
      for (int i = 0; i < kLaneKeys; ++i) {
        const float* d = &dot[i / 2][0][i % 2 * 2];
        const float* e = &dot[i / 2][1][i % 2 * 2];
        // The maximum drops a NaN: such a head adds nothing.
        const float sum = (device::max(d[0], 0.0f) + device::max(d[1], 0.0f)) +
                          (device::max(e[0], 0.0f) + device::max(e[1], 0.0f));
        out.x[i] = live[i] && column + i < seen ? sum * inverse : -device::infinity();
      }
      float* to = logits + row * pitch + column;
      if (packed && column + kLaneKeys <= columns) {
        *reinterpret_cast<Four*>(to) = out;
      } else {
        DEVICE_UNROLL
        for (int i = 0; i < kLaneKeys; ++i)
          if (column + i < columns) to[i] = out.x[i];
      }
    }
  }
}

struct Plan {
  int rows;       // of a tile
  int64_t parts;  // blocks of a tile
  float inverse;
};

// Why this kernel does not serve a call, or null.
const char* refusal(const ScoreParams& p) {
  const int64_t dims = p.q.size[2];
  if (p.q.size[1] > kHeads || (dims != 32 && dims != 64 && dims != 128))
    return "it serves up to 4 heads of 32, 64 or 128 elements";
  if (p.q.dtype != p.k_cache.dtype || p.q.dtype == TK_F32)
    return "it serves queries and keys that are both bf16 or both f16";
  if (!dense_runs(p.q, 16) || !dense_runs(p.k_cache, 16))
    return "queries and keys have to be dense and aligned to 16 bytes";
  if (p.logits.size[1] > INT32_MAX / 2 || p.k_cache.size[1] > INT32_MAX)
    return "it counts columns in 32 bits";
  const float inverse = 1.0f / p.divisor;
  if (!(inverse >= 0x1p-126f && inverse <= 0x1p126f)) return "the divisor has no inverse in fp32";
  return nullptr;
}

Plan plan_of(const ScoreParams& p) {
  Plan plan{};
  const int64_t rows = p.q.size[0], requests = std::max<int64_t>(p.page_table.size[0], 1);
  plan.rows = rows <= 4 * requests ? 4 : rows <= 64 * requests ? 16 : 64;
  const int64_t tiles = (rows + plan.rows - 1) / plan.rows;
  const int64_t steps = (p.logits.size[1] + kStep * kWaves - 1) / (kStep * kWaves);
  plan.parts = std::max<int64_t>(std::min(2 * device::multiprocessors() / tiles, steps), 1);
  plan.inverse = 1.0f / p.divisor;
  return plan;
}

template <class T, int kDims, int kRows>
void launch_tiles(const ScoreParams& p, const Plan& plan, void* stream) {
  const int64_t tiles = (p.q.size[0] + kRows - 1) / kRows;
  device::launch(score_tile_kernel<T, kDims, kRows>, blocks(tiles * plan.parts), kThreads,
                 kRows / kQuad * quad_words(kDims) * sizeof(Words4), stream, p, plan.parts,
                 plan.inverse, dense_runs(p.logits, 16));
}
template <class T, int kDims>
void launch_dims(const ScoreParams& p, const Plan& plan, void* stream) {
  if (plan.rows == 4)
    launch_tiles<T, kDims, 4>(p, plan, stream);
  else if (plan.rows == 16)
    launch_tiles<T, kDims, 16>(p, plan, stream);
  else
    launch_tiles<T, kDims, 64>(p, plan, stream);
}
template <class T>
void launch_plan(const ScoreParams& p, const Plan& plan, void* stream) {
  if (p.q.size[2] == 32)
    launch_dims<T, 32>(p, plan, stream);
  else if (p.q.size[2] == 64)
    launch_dims<T, 64>(p, plan, stream);
  else
    launch_dims<T, 128>(p, plan, stream);
}

void launch(const ScoreParams& p, void* stream) {
  if (p.q.size[0] == 0) return;
  const Plan plan = plan_of(p);
  if (p.q.dtype == TK_BF16)
    launch_plan<bf16>(p, plan, stream);
  else
    launch_plan<f16>(p, plan, stream);
}

struct Score {
  static constexpr const toolkit::Contract& contract = score::contract;
  static constexpr const char* implementation = "sm_80";
  static uint64_t workspace(const toolkit::Args& args) {
    if (const char* why = refusal(score_params(args)))
      throw device::Unsupported(std::string("because ") + why);
    return 0;
  }
  static void run(const device::OpCall& call) { launch(score_params(call.args), call.stream); }
};
DEVICE_OP(Score)

const bool offered = [] {
  tuned_score() = [](const ScoreParams& p, void* stream) {
    if (refusal(p)) return false;
    launch(p, stream);
    return true;
  };
  return true;
}();

}  // namespace
}  // namespace qsa
