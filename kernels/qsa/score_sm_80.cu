// SPDX-License-Identifier: Apache-2.0
// qsa.score on matrix instructions, for up to 4 heads of 64 or 128 elements in bf16 or f16:
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
#include <bit>
#include <cstdlib>

#include "device/nvidia.h"
#include "qsa/launches.h"
#include "qsa/score.h"

namespace qsa {
namespace {

using device::Words4;

constexpr int kHeads = 4;  // at most; missing ones are zeros
constexpr int kStep = 32;  // keys
constexpr int kTiles = kStep / 8;
static_assert(kStep == device::kWave, "a lane finds the address of one key of a step");

// Rows that are multiplied at once: 8 as two matrices of 16 (row, head), or 4 as one.
constexpr int pack_of(int rows) { return rows < 8 ? 4 : 8; }
// 16-byte pieces of a key that one lane holds: member, member + 4, ...
constexpr int pieces_of(int dims) { return dims / 32; }
// The queries of a tile of `rows`, in 16-byte words.
constexpr int query_words(int rows, int dims) { return (rows < 4 ? 4 : rows) * kHeads * dims / 8; }
// Waves of a block and blocks that fit a multiprocessor: 16 waves of 128 registers a lane.
constexpr int waves_of(int rows) { return rows < 64 ? 8 : 16; }
constexpr int blocks_of(int rows) { return 16 / waves_of(rows); }
constexpr int shared_words(int rows, int dims) {
  return query_words(rows, dims) + waves_of(rows) * kStep * dims / 8;
}

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

// n / divisor for 0 <= n < 2^31, without a division.
struct Divider {
  uint32_t factor, shift;
  explicit Divider(uint32_t divisor) : shift(31 + uint32_t(std::bit_width(divisor - 1))) {
    factor = uint32_t(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  DEVICE_FUNCTION uint32_t operator()(uint32_t n) const {
    return uint32_t(uint64_t{n} * factor >> shift);
  }
};
struct Dividers {
  Divider page_size, ratio, rows_of_request;
};

// An index times its stride where both have 32 bits (refusal() sees to that): one instruction.
DEVICE_FUNCTION int64_t times(int64_t index, int64_t stride) {
  return int64_t{int32_t(index)} * int32_t(stride);
}
template <int kRank>
DEVICE_FUNCTION int64_t id_at(const Tensor<kRank>& t, int64_t at) {
  return t.dtype == TK_I64 ? static_cast<const int64_t*>(t.data)[at]
                           : int64_t{static_cast<const int32_t*>(t.data)[at]};
}
DEVICE_FUNCTION int64_t id_of(const Tensor<1>& t, int64_t index) {
  return id_at(t, times(index, t.stride[0]));
}

// Where this lane's key of a step lies: the id of its page as the table has it, and its slot. Asked
// for one step ahead, and not looked at before that step: a look waits for memory.
struct Place {
  uint32_t id[2], slot;
};
DEVICE_FUNCTION Place place_of(const ScoreParams& p, const Divider& page_size, int64_t request,
                               int step) {
  const uint32_t column = uint32_t(step) * kStep + uint32_t(device::lane());
  const uint32_t at = page_size(column), none = ~uint32_t{0};
  Place place{{none, none}, column - at * uint32_t(p.k_cache.size[1])};
  if (request >= 0 && request < p.page_table.size[0] && at < uint32_t(p.page_table.size[1])) {
    const int64_t entry =
        times(request, p.page_table.stride[0]) + times(at, p.page_table.stride[1]);
    if (p.page_table.dtype == TK_I64) {
      const uint64_t id = static_cast<const uint64_t*>(p.page_table.data)[entry];
      place.id[0] = uint32_t(id);
      place.id[1] = uint32_t(id >> 32);
    } else {
      place.id[0] = static_cast<const uint32_t*>(p.page_table.data)[entry];
    }
  }
  return place;
}
// The key's offset, or kMasked.
DEVICE_FUNCTION int64_t offset_at(const ScoreParams& p, const Place& place) {
  const int64_t page = p.page_table.dtype == TK_I64
                           ? int64_t(uint64_t{place.id[1]} << 32 | place.id[0])
                           : int64_t{int32_t(place.id[0])};
  if (page < 0 || page >= p.k_cache.size[0]) return kMasked;
  return times(page, p.k_cache.stride[0]) + times(place.slot, p.k_cache.stride[1]);
}

// The key of a step that is column `of` of matrix `tile`: such that a lane's results (columns
// 2 member and 2 member + 1 of each) are two runs of four neighbours.
DEVICE_FUNCTION int key_of(int tile, int of) {
  return tile / 2 * 16 + of / 2 * 4 + tile % 2 * 2 + of % 2;
}

// The queries of a tile lie in shared memory in the order in which lanes read them as fragments:
// [pack][matrix][piece][half of it][lane]. Row `group` of a matrix is an even head, row group + 8
// the odd one after it. A thread brings both, and the same of every kStride-th pack.
template <int kDims, int kRows>
struct QueryCopy {
  static constexpr int kPieces = pieces_of(kDims), kPack = pack_of(kRows);
  static constexpr int kPairs = kPack / 4 * kPieces * device::kWave;  // of words, in a pack
  static constexpr int kThreads = waves_of(kRows) * device::kWave, kStride = kThreads / kPairs;
  static constexpr int kCopies = (kRows + kStride * kPack - 1) / (kStride * kPack);
  static_assert(kThreads % kPairs == 0);
  Words4 even[kCopies], odd[kCopies];

  DEVICE_FUNCTION void load(const ScoreParams& p, int64_t first_row, int rows) {
    const int pair = device::thread() % kPairs, lane = pair % device::kWave;
    const int piece = pair / device::kWave % kPieces, matrix = pair / device::kWave / kPieces;
    const int head = kPack == 8 ? 2 * matrix : lane / 16 * 2;
    DEVICE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const int row = (device::thread() / kPairs + i * kStride) * kPack + lane / 4 % kPack;
      const uint16_t* from = static_cast<const uint16_t*>(p.q.data) +
                             times(first_row + row, p.q.stride[0]) + times(head, p.q.stride[1]) +
                             (lane % 4 + 4 * piece) * 8;
      even[i] = odd[i] = {};
      if (row < rows && head < p.q.size[1]) even[i] = device::load_once16(from);
      if (row < rows && head + 1 < p.q.size[1])
        odd[i] = device::load_once16(from + int32_t(p.q.stride[1]));
    }
  }
  DEVICE_FUNCTION void store(Words4* query) const {
    const int pair = device::thread() % kPairs;
    DEVICE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const int pack = device::thread() / kPairs + i * kStride;
      if (pack * kPack >= kRows) return;  // more threads than work
      Words4* to = query + pack * query_words(kPack, kDims) +
                   pair / device::kWave * 2 * device::kWave + pair % device::kWave;
      to[0] = {even[i].x[0], odd[i].x[0], even[i].x[1], odd[i].x[1]};
      to[device::kWave] = {even[i].x[2], odd[i].x[2], even[i].x[3], odd[i].x[3]};
    }
  }
};

// Starts to bring the keys of a step, of which a lane gets what it holds as fragments: no other
// lane reads its words. `at` is the offset of this lane's key; a key of no page is replaced by the
// first of the cache, which is always there.
template <class T, int kPieces>
DEVICE_FUNCTION void bring_keys(const ScoreParams& p, int64_t at, Words4* words) {
  const int group = device::lane() / 4, member = device::lane() % 4;
  const int64_t valid = at == kMasked ? 0 : at;
  DEVICE_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const T* from = static_cast<const T*>(p.k_cache.data) +
                    device::shuffle(valid, key_of(n, group)) + member * 8;
    DEVICE_UNROLL
    for (int j = 0; j < kPieces; ++j)
      device::copy_async16_of_line(words + (n * kPieces + j) * device::kWave, from + j * 32);
  }
  device::copy_async_commit();
}

template <class T, int kDims, int kRows>
DEVICE_KERNEL_BLOCKS(waves_of(kRows) * device::kWave, blocks_of(kRows))
score_tile_kernel(ScoreParams p, Dividers divide, float inverse, bool packed) {
  using Four = Pack<float>;
  constexpr int kPieces = pieces_of(kDims), kPack = pack_of(kRows), kMatrices = kPack / 4;
  constexpr int kWaves = waves_of(kRows), kThreads = kWaves * device::kWave;
  DEVICE_DYNAMIC_SHARED(Words4, query);  // and the next keys of each wave
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
  const int64_t row = first_row + device::min(thread, rows - 1);
  const int64_t request = id_of(p.token_to_req, row);
  const int64_t position = id_of(p.positions, row);
  const int64_t guess = divide.rows_of_request(uint32_t(first_row));
  Place place = place_of(p, divide.page_size, guess, first_step);  // of `after`, below
  QueryCopy<kDims, kRows> copy;
  copy.load(p, first_row, rows);
  const int64_t length =
      request >= 0 && request < p.lengths.size[0] ? id_of(p.lengths, request) : 0;
  Words4* staged = device::data(query) + query_words(kRows, kDims) +
                   device::wave() * kTiles * kPieces * device::kWave + device::lane();
  bring_keys<T, kPieces>(p, offset_at(p, place), staged);
  copy.store(device::data(query));
  if (thread < rows) {
    const int64_t tokens = larger(smaller(tokens_through(position), length), 0);
    const int64_t seen = tokens <= INT32_MAX ? divide.ratio(uint32_t(tokens)) : tokens / p.ratio;
    request_of[thread] = request;
    visible_of[thread] = int(smaller(seen, columns));
    if (device::block_y() == 0)
      static_cast<int32_t*>(p.visible.data)[times(row, p.visible.stride[0])] =
          int32_t(smaller(seen, INT32_MAX));
  }
  device::sync_block();

  const int64_t* requests = device::data(request_of);
  const int* visible = device::data(visible_of);
  float* logits = static_cast<float*>(p.logits.data) + times(first_row, p.logits.stride[0]);
  const int pitch = int(p.logits.stride[0]);

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
            *reinterpret_cast<Four*>(to) = {low, low, low, low};
          else
            *to = low;
        }
    }
    return run;
  };

  const auto brought = [&](const Cursor& c) {  // before the loop
    return c.run.begin == 0 && c.step == first_step && requests[0] == guess;
  };
  // A wave multiplies the keys of `now` while those of `next` are on their way and the page ids of
  // `after` are asked for.
  Cursor next{{0, 0, 0, 0}, -1}, after{{0, 0, 0, 0}, first_step - stride};  // before the first
  bool next_masked = false;
  for (;;) {
    const Cursor now = next;
    const bool masked = next_masked;
    next = after;
    const Place next_place = place;
    after.step += stride;
    while (int64_t{after.step} * kStep >= after.run.most) {
      if (after.run.end >= rows) {
        after = {{rows, rows, 0, 0}, -1};
        break;
      }
      after = {enter(after.run.end), first_step};
    }
    if (after.step >= 0 && !brought(after))
      place = place_of(p, divide.page_size, requests[after.run.begin], after.step);

    device::copy_async_wait<0>();
    if (now.step < 0 && next.step < 0 && after.step < 0) return;
    Words4 key[kTiles][kPieces];
    if (now.step >= 0) {
      DEVICE_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        DEVICE_UNROLL
        for (int j = 0; j < kPieces; ++j) key[n][j] = staged[(n * kPieces + j) * device::kWave];
      }
      device::sync_wave();  // read before the next keys come
    }
    if (next.step >= 0) {
      const int64_t at = offset_at(p, next_place);
      next_masked = at == kMasked;
      if (!brought(next)) bring_keys<T, kPieces>(p, at, staged);
    }
    if (now.step < 0) continue;

    // A lane ends up with four neighbouring results of a row, eight of them where it has two runs.
    constexpr int kRuns = kPack / 4;
    const int column = now.step * kStep;
    const int first = column + (kRuns == 1 ? group / 4 * 16 : 0) + member * 4;
    const bool whole = packed && column + kStep <= now.run.least && !device::any(masked);
    unsigned dead = 0;
    if (!whole) {
      DEVICE_UNROLL
      for (int i = 0; i < 4 * kRuns; ++i)
        dead |= unsigned(device::shuffle(int(masked), first - column + i / 4 * 16 + i % 4)) << i;
    }

    for (int pack = now.run.begin / kPack; pack * kPack < now.run.end; ++pack) {
      const Words4* q = device::data(query) + pack * query_words(kPack, kDims) + device::lane();
      float sum[8];
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
            *reinterpret_cast<Four*>(to + 16 * h) = {sum[4 * h] * inverse, sum[4 * h + 1] * inverse,
                                                     sum[4 * h + 2] * inverse,
                                                     sum[4 * h + 3] * inverse};
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
  }
}

constexpr int kStaticShared = 1024;  // at most

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

bool fits(int rows, const ScoreParams& p) {
  return shared_words(rows, int(p.q.size[2])) * int(sizeof(Words4)) + kStaticShared <=
         device::shared_bytes_of_block();
}

Plan plan_of(const ScoreParams& p) {
  const int64_t rows = p.q.size[0], requests = std::max<int64_t>(p.page_table.size[0], 1);
  const int64_t steps = (p.logits.size[1] + kStep - 1) / kStep;
  const int64_t waves = 16 * device::multiprocessors();  // at once
  Plan plan{1,
            1,
            {Divider(uint32_t(p.k_cache.size[1])), Divider(uint32_t(p.ratio)),
             Divider(uint32_t((rows + requests - 1) / requests))},
            1 / p.divisor};
  if (rows > requests) plan.rows = 4;
  if (rows > 4 * requests) plan.rows = 16;
  if (rows > 64 * requests && rows / 64 * steps >= waves && fits(64, p)) plan.rows = 64;
  const int64_t tiles = (rows + plan.rows - 1) / plan.rows, in_block = waves_of(plan.rows);
  plan.parts =
      std::max<int64_t>(std::min(waves / in_block / tiles, (steps + in_block - 1) / in_block), 1);
  return plan;
}

template <class T, int kDims, int kRows>
void launch_tiles(const ScoreParams& p, const Plan& plan, void* stream) {
  const int64_t tiles = (p.q.size[0] + kRows - 1) / kRows;
  device::launch(score_tile_kernel<T, kDims, kRows>, device::Grid{tiles, plan.parts, 1},
                 waves_of(kRows) * device::kWave, shared_words(kRows, kDims) * sizeof(Words4),
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
