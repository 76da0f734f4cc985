// SPDX-License-Identifier: Apache-2.0
// qsa.score on matrix instructions, for up to 4 heads of 64 or 128 elements in bf16 or f16:
// decode, speculative and prefill by one kernel. Measurements: score.md.
//
// A block holds the queries of a tile of rows in shared memory and each of its waves walks over
// steps of 32 keys. Keys go from global memory straight into the registers that the matrix
// instruction reads: the order of k inside a dot product is free as long as queries and keys agree
// on it, so a lane owns 16-byte pieces of its keys. Keys are the B side, of which a lane holds
// pairs of registers: a 16-byte load is two of them as it comes (as A it would have to be moved
// apart). Nothing in the loop needs a barrier; the waves of a multiprocessor hide each other's
// loads.
//
// The rows of the A side are ordered so that one lane ends up with two or all four heads of a row,
// and the keys of a step so that it ends up with runs of four neighbouring scores.
//
// Rows of a tile that follow each other and belong to one request share a pass over its keys; what
// belongs together is only known on the device. The steps of a pass, and the columns beyond them
// that are only filled, are dealt to the blocks of a tile in turn, so the work follows the visible
// keys and never the capacity of the page table.
#include <algorithm>
#include <cstdlib>

#include "device/nvidia.h"
#include "qsa/launches.h"
#include "qsa/score.h"
#include "qsa/score_fragments.h"

namespace qsa {
namespace {

using namespace score_fragments;

// Rows [begin, end) of a tile with one request, and the most and fewest columns that one of them
// sees.
struct Run {
  int begin, end;
  int most, least;
};

// What a wave multiplies next: the keys of `step` with the queries of `run`. No more: step < 0.
struct Cursor {
  Run run;
  int step;
};

struct Dividers {
  Divider page_size, ratio, rows_of_request;
};

template <class T, int kDims, int kRows>
DEVICE_KERNEL_BLOCKS(waves_of(kRows) * device::kWave, kBlocks)
score_tile_kernel(ScoreParams p, Dividers divide, float inverse, bool packed) {
  using Four = Pack<float>;
  constexpr int kPieces = pieces_of(kDims), kPack = pack_of(kRows), kMatrices = kPack / 4;
  constexpr int kWaves = waves_of(kRows), kThreads = kWaves * device::kWave;
  DEVICE_DYNAMIC_SHARED(Words4, query);
  DEVICE_SHARED(int64_t, request_of, kRows);
  DEVICE_SHARED(int, visible_of, kRows);
  const int thread = device::thread(), group = device::lane() / 4, member = device::lane() % 4;
  // The last rows of a prefill see most: they go first.
  const int64_t first_row = int64_t{device::blocks_x() - 1 - device::block_x()} * kRows;
  const int rows = int(smaller(kRows, p.q.size[0] - first_row));
  const int columns = int(p.logits.size[1]);
  const int first_step = device::block_y() * kWaves + device::wave();
  const int stride = device::blocks_y() * kWaves;

  // Two trips to memory until the first keys are here: page ids and keys. For that the request is
  // guessed from the batch's shape; requests, positions, lengths and queries come meanwhile, and
  // whether the guess was right and a row sees those keys is only known afterwards.
  const int64_t own_row = first_row + device::min(thread, rows - 1);
  const int64_t request = id_of(p.token_to_req, own_row);
  const int64_t position = id_of(p.positions, own_row);
  const int64_t guess = divide.rows_of_request(uint32_t(first_row));
  Place place = place_of(p, divide.page_size, guess, first_step);
  QueryCopy<kDims, kRows> copy;
  copy.load(0, p, first_row, rows);
  const int64_t length =
      request >= 0 && request < p.lengths.size[0] ? id_of(p.lengths, request) : 0;
  int64_t at = offset_at(p, place);
  Words4 key[kTiles][kPieces];
  load_keys<T>(p, at, key);
  copy.store(0, device::data(query));
  for (int batch = 1; batch < copy.kBatches; ++batch) {
    copy.load(batch, p, first_row, rows);
    copy.store(batch, device::data(query));
  }
  if (thread < rows) {
    const int64_t tokens = larger(smaller(tokens_through(position), length), 0);
    const int64_t seen = tokens <= INT32_MAX ? divide.ratio(uint32_t(tokens)) : tokens / p.ratio;
    request_of[thread] = request;
    visible_of[thread] = int(smaller(seen, columns));
    if (device::block_y() == 0)
      static_cast<int32_t*>(p.visible.data)[times(own_row, p.visible.stride[0])] =
          int32_t(smaller(seen, INT32_MAX));
  }
  device::sync_block();

  const int64_t* requests = device::data(request_of);
  const int* visible = device::data(visible_of);
  float* logits = static_cast<float*>(p.logits.data) + times(first_row, p.logits.stride[0]);
  const int pitch = int(p.logits.stride[0]);

  // Inside select the scores are read again soon: those stay in the L2 as long as others do.
  const auto put = [&](float* to, const Four& scores) {
    if (p.fill)
      device::store_once16(to, scores);
    else
      device::store16(to, scores);
  };

  // Finds the run that starts at a row and fills what none of its rows sees.
  const auto enter = [&](int begin) {
    Run run{begin, begin, 0, INT32_MAX};
    bool together = kRows > 8;
    if (together) {  // most often all rows of a large tile are one run
      for (int row = device::lane(); row < rows; row += device::kWave) {
        together &= requests[row] == requests[0];
        run.most = device::max(run.most, visible[row]);
        run.least = device::min(run.least, visible[row]);
      }
      together = device::all(together);
    }
    if (together) {
      run.end = rows;
      run.most = device::wave_max(run.most);
      run.least = device::wave_min(run.least);
    } else {
      run = {begin, begin, 0, INT32_MAX};
      for (; run.end < rows && requests[run.end] == requests[begin]; ++run.end) {
        run.most = device::max(run.most, visible[run.end]);
        run.least = device::min(run.least, visible[run.end]);
      }
    }
    if (p.fill) {
      const int per = packed ? Four::kSize : 1;
      int64_t c = (run.most + kStep - 1) / kStep * kStep;
      for (c += (int64_t{device::block_y()} * kThreads + thread) * per; c < columns;
           c += int64_t{device::blocks_y()} * kThreads * per)
        for (int row = run.begin; row < run.end; ++row) {
          float* to = logits + int64_t{row} * pitch + c;
          const float low = -device::infinity();
          if (packed)
            put(to, Four{low, low, low, low});
          else
            *to = low;
        }
    }
    return run;
  };

  // A wave multiplies the keys of `now` while the page ids of `next` are on their way.
  Cursor next{{0, 0, 0, 0}, first_step - stride};  // before the first
  for (;;) {
    const Cursor now = next;
    next.step += stride;
    while (int64_t{next.step} * kStep >= next.run.most) {
      if (next.run.end >= rows) {
        next.step = -1;
        break;
      }
      next = {enter(next.run.end), first_step};
    }
    const bool loaded =
        now.step < 0 && next.run.begin == 0 && next.step == first_step && requests[0] == guess;
    if (next.step >= 0 && !loaded)
      place = place_of(p, divide.page_size, requests[next.run.begin], next.step);
    const bool masked = at == kMasked;

    // A lane ends up with four neighbouring results of a row, eight of them where it has two runs.
    constexpr int kRuns = kPack / 4;
    const int column = now.step * kStep;
    const int first = column + (kRuns == 1 ? group / 4 * 16 : 0) + member * 4;
    const bool whole = packed && column + kStep <= now.run.least && !device::any(masked);
    unsigned dead = 0;
    if (!whole && now.step >= 0) {
      DEVICE_UNROLL
      for (int i = 0; i < 4 * kRuns; ++i)
        dead |= unsigned(device::shuffle(int(masked), first - column + i / 4 * 16 + i % 4)) << i;
    }

    for (int pack = now.run.begin / kPack; pack * kPack < now.run.end; ++pack) {
      const Words4* q = device::data(query) + pack * query_words(kPack, kDims) + device::lane();
      float sum[8] = {};
      DEVICE_UNROLL
      for (int m = 0; m < kMatrices; ++m) {
        float dot[kTiles][4] = {};
        DEVICE_UNROLL
        for (int j = 0; j < kPieces; ++j) {
          DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            const Words4 a = q[((m * kPieces + j) * 2 + half) * device::kWave];
            DEVICE_UNROLL
            for (int n = 0; n < kTiles; ++n)
              device::multiply_16x8x16<T>(dot[n], a.x,
                                          {key[n][j].x[2 * half], key[n][j].x[2 * half + 1]});
          }
        }
        DEVICE_UNROLL
        for (int i = 0; i < 8; ++i) {
          const float* d = dot[i / 4 * 2 + i % 4 / 2];
          // The maximum drops a NaN: such a head adds nothing.
          const float two = device::max(d[i % 2], 0.0f) + device::max(d[2 + i % 2], 0.0f);
          sum[i] = m == 0 ? two : sum[i] + two;
        }
      }
      if constexpr (kPack == 4) {  // groups 0 ... 3 finish the first four, the others the last four
        DEVICE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float other = device::shuffle_xor(group < 4 ? sum[4 + i] : sum[i], 16);
          sum[i] = (group < 4 ? sum[i] : sum[4 + i]) + other;
        }
      }
      const int row = pack * kPack + group % kPack;
      if (row >= now.run.begin && row < now.run.end) {
        float* to = logits + int64_t{row} * pitch + first;
        if (whole) {
          DEVICE_UNROLL
          for (int h = 0; h < kRuns; ++h)
            put(to + 16 * h, Four{sum[4 * h] * inverse, sum[4 * h + 1] * inverse,
                                  sum[4 * h + 2] * inverse, sum[4 * h + 3] * inverse});
        } else {
          const int seen = visible[row];
          DEVICE_UNROLL
          for (int i = 0; i < 4 * kRuns; ++i) {
            const int far = i / 4 * 16 + i % 4;
            if (first + far >= columns) continue;
            to[far] =
                first + far < seen && !(dead >> i & 1) ? sum[i] * inverse : -device::infinity();
          }
        }
      }
    }
    if (next.step < 0) return;
    if (!loaded) {
      at = offset_at(p, place);
      load_keys<T>(p, at, key);
    }
  }
}

struct Plan {
  int rows;       // of a tile
  int64_t parts;  // blocks of a tile
  Dividers divide;
  float inverse;
};

template <int kRank>
bool counts_in_32_bits(const Tensor<kRank>& t) {
  for (int d = 0; d < kRank; ++d)
    if (t.size[d] > INT32_MAX || std::abs(t.stride[d]) > INT32_MAX) return false;
  return true;
}

// Why this kernel does not serve a call, or null.
const char* refusal(const ScoreParams& p) {
  const int64_t dims = p.q.size[2];
  if (p.q.size[1] > kHeads || (dims != 64 && dims != 128))
    return "it serves up to 4 heads of 64 or 128 elements";
  if (p.q.dtype != p.k_cache.dtype || p.q.dtype == TK_F32)
    return "it serves queries and keys that are both bf16 or both f16";
  if (!dense_runs(p.q, 16) || !dense_runs(p.k_cache, 16))
    return "queries and keys have to be dense and aligned to 16 bytes";
  if (p.logits.size[1] > 1 && p.logits.stride[1] != 1) return "rows of logits have to be dense";
  if (!counts_in_32_bits(p.q) || !counts_in_32_bits(p.k_cache) ||
      !counts_in_32_bits(p.page_table) || !counts_in_32_bits(p.token_to_req) ||
      !counts_in_32_bits(p.positions) || !counts_in_32_bits(p.lengths) ||
      !counts_in_32_bits(p.logits) || !counts_in_32_bits(p.visible) || p.ratio > INT32_MAX ||
      p.logits.size[1] > INT32_MAX / 2)
    return "it takes sizes and strides of up to 31 bits";
  const float inverse = 1.0f / p.divisor;
  if (!(inverse >= 0x1p-126f && inverse <= 0x1p126f)) return "the divisor has no inverse in fp32";
  return nullptr;
}

// Rows of a tile: one where each row has a request of its own, as far as the shapes tell; more
// where they share keys. Tiles of 64 read the keys least often, but have to be enough to keep all
// waves busy, and many more than that where the visible columns grow from none to all.
int rows_of_tile(const ScoreParams& p, int64_t steps) {
  const int64_t rows = p.q.size[0], requests = p.page_table.size[0];
  const int64_t processors = device::multiprocessors(), tiles = rows / 64;
  if (rows <= requests) return 1;
  if (rows <= 4 * requests) return 4;
  const bool uneven = 2.0 * double(rows) > double(p.logits.size[1]) * double(p.ratio * requests);
  return tiles * steps >= 8 * processors && (!uneven || tiles >= 4 * processors) ? 64 : 16;
}

Plan plan_of(const ScoreParams& p) {
  const int64_t rows = p.q.size[0], requests = p.page_table.size[0];
  const int64_t steps = (p.logits.size[1] + kStep - 1) / kStep;
  Plan plan{rows_of_tile(p, steps),
            1,
            {Divider(uint32_t(p.k_cache.size[1])), Divider(uint32_t(p.ratio)),
             Divider(uint32_t((rows + requests - 1) / requests))},
            1 / p.divisor};
  const int64_t tiles = (rows + plan.rows - 1) / plan.rows;
  const int64_t resident = kBlocks * device::multiprocessors(), waves = waves_of(plan.rows);
  plan.parts = std::max<int64_t>(std::min(resident / tiles, (steps + waves - 1) / waves), 1);
  return plan;
}

template <class T, int kDims, int kRows>
void launch_tiles(const ScoreParams& p, const Plan& plan, void* stream) {
  const int64_t tiles = (p.q.size[0] + kRows - 1) / kRows;
  device::launch(score_tile_kernel<T, kDims, kRows>, device::Grid{tiles, plan.parts, 1},
                 waves_of(kRows) * device::kWave, query_words(kRows, kDims) * sizeof(Words4),
                 stream, p, plan.divide, plan.inverse, dense_runs(p.logits, 16));
}
template <class T, int kDims>
void launch_dims(const ScoreParams& p, const Plan& plan, void* stream) {
  if (plan.rows == 1)
    launch_tiles<T, kDims, 1>(p, plan, stream);
  else if (plan.rows == 4)
    launch_tiles<T, kDims, 4>(p, plan, stream);
  else if (plan.rows == 16)
    launch_tiles<T, kDims, 16>(p, plan, stream);
  else
    launch_tiles<T, kDims, 64>(p, plan, stream);
}
template <class T>
void launch_plan(const ScoreParams& p, const Plan& plan, void* stream) {
  if (p.q.size[2] == 64)
    launch_dims<T, 64>(p, plan, stream);
  else
    launch_dims<T, 128>(p, plan, stream);
}

void refuse(const ScoreParams& p, device::Carver&) {
  if (const char* why = refusal(p)) throw device::Unsupported(std::string("because ") + why);
}

void launch_tuned(const ScoreParams& p, device::Carver& nothing, void* stream) {
  refuse(p, nothing);
  if (p.q.size[0] == 0) return;
  const Plan plan = plan_of(p);
  if (p.q.dtype == TK_BF16)
    launch_plan<bf16>(p, plan, stream);
  else
    launch_plan<f16>(p, plan, stream);
}

struct ScoreTuned {
  static constexpr const toolkit::Contract& contract = score::contract;
  static constexpr const char* implementation = "sm_80";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver nothing(nullptr);
    refuse(score_params(args), nothing);
    return 0;
  }
  static void run(const device::OpCall& call) {
    device::Carver nothing(nullptr);
    launch_tuned(score_params(call.args), nothing, call.stream);
  }
};
DEVICE_OP(ScoreTuned)

const bool offered = [] {
  tuned_score = {refuse, launch_tuned};
  return true;
}();

}  // namespace
}  // namespace qsa
