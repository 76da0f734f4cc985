// SPDX-License-Identifier: Apache-2.0
// qsa.score: one block a (row, tile of columns), one thread a column. Keys come through shared
// memory, so that they are read in runs; the query is broadcast from there, four heads at a time.
// Tiles beyond the visible columns only fill. Dot products are summed per chunk of the head
// dimension, then over the chunks: shorter sums, smaller error.
#include "qsa/launches.h"
#include "qsa/score.h"

namespace qsa {
namespace {

constexpr int kColumns = 128;  // of a tile; also the threads of a block
constexpr int kHeads = 4;      // at once
constexpr int kDims = 64;      // of a chunk
constexpr int kPitch =
    kDims + 1;  // odd: 32 threads that read one dimension of 32 keys meet 32 banks

DEVICE_FUNCTION int64_t visible_columns(const ScoreParams& p, int64_t row, int64_t request) {
  return smaller(groups_in(tokens_through(load_index(p.positions, row)), p.ratio),
                 groups_in(length_of(p.lengths, request), p.ratio));
}

// Offset of a column's key, or kMasked.
DEVICE_FUNCTION int64_t key_offset(const ScoreParams& p, int64_t request, int64_t column) {
  const int64_t page_size = p.k_cache.size[1];
  const int64_t page = live_page(p.page_table, request, column / page_size, p.k_cache.size[0]);
  return page < 0 ? kMasked : offset_of(p.k_cache, page, column % page_size);
}

template <class K>
DEVICE_KERNEL(kColumns)
score_kernel(ScoreParams p, int64_t tiles, bool packed_keys) {
  using Four = Pack<float>;
  DEVICE_SHARED(float, keys, kColumns* kPitch);
  DEVICE_SHARED(Four, query, kDims);  // [dimension][head]
  DEVICE_SHARED(int64_t, key_at, kColumns);
  const int64_t row = device::block_x() / tiles, first = device::block_x() % tiles * kColumns;
  const int thread = device::thread();
  const int64_t column = first + thread, columns = p.logits.size[1];
  const int64_t request = load_index(p.token_to_req, row);
  const int64_t visible = visible_columns(p, row, request);
  if (first == 0 && thread == 0)
    *element<int32_t>(p.visible, row) = int32_t(smaller(visible, INT32_MAX));
  const int64_t shown =
      smaller(smaller(visible, columns) - first, kColumns);  // columns of this tile
  if (shown <= 0) {
    if (p.fill && column < columns) *element<float>(p.logits, row, column) = -device::infinity();
    return;
  }

  key_at[thread] = thread < shown ? key_offset(p, request, column) : kMasked;
  const K* cache = static_cast<const K*>(p.k_cache.data);
  const int64_t dims = p.q.size[2];
  float score = 0.0f;
  for (int64_t head = 0; head < p.q.size[1]; head += kHeads) {
    float dot[kHeads] = {};
    for (int64_t from = 0; from < dims; from += kDims) {
      const int chunk = int(smaller(kDims, dims - from));
      device::sync_block();
      for (int i = thread; i < kHeads * chunk; i += kColumns) {
        const int64_t h = head + i / chunk, d = i % chunk;
        query[d].x[i / chunk] =
            h < p.q.size[1] ? load_float(p.q.data, p.q.dtype, offset_of(p.q, row, h, from + d))
                            : 0.0f;
      }
      if (packed_keys) {
        constexpr int kPack = Pack<K>::kSize;
        const int packs = chunk / kPack;
        for (int i = thread; i < int(shown) * packs; i += kColumns) {
          const int c = i / packs, d = i % packs * kPack;
          Pack<K> values{};
          if (key_at[c] != kMasked)
            values = *reinterpret_cast<const Pack<K>*>(cache + key_at[c] + from + d);
          DEVICE_UNROLL
          for (int e = 0; e < kPack; ++e) keys[c * kPitch + d + e] = device::to_float(values.x[e]);
        }
      } else {
        for (int i = thread; i < int(shown) * chunk; i += kColumns) {
          const int c = i / chunk, d = i % chunk;
          keys[c * kPitch + d] =
              key_at[c] == kMasked
                  ? 0.0f
                  : device::to_float(cache[key_at[c] + (from + d) * p.k_cache.stride[3]]);
        }
      }
      device::sync_block();
      if (thread < shown) {
        const float* key = device::data(keys) + thread * kPitch;
        const Four* q = device::data(query);
        float part[kHeads] = {};
        for (int d = 0; d < chunk; ++d) {
          const Four value = q[d];
          DEVICE_UNROLL
          for (int h = 0; h < kHeads; ++h) part[h] += value.x[h] * key[d];
        }
        DEVICE_UNROLL
        for (int h = 0; h < kHeads; ++h) dot[h] += part[h];
      }
    }
    // The maximum drops a NaN: such a head adds nothing.
    DEVICE_UNROLL
    for (int h = 0; h < kHeads; ++h) score += device::max(dot[h], 0.0f);
  }
  if (column < columns && (p.fill || thread < shown))
    *element<float>(p.logits, row, column) =
        key_at[thread] == kMasked ? -device::infinity() : device::divide(score, p.divisor);
}

void launch_portable(const ScoreParams& p, device::Carver&, void* stream) {
  const int64_t rows = p.q.size[0];
  if (rows == 0) return;
  // No columns at all still write visible_blocks.
  const int64_t tiles = p.logits.size[1] > 0 ? (p.logits.size[1] + kColumns - 1) / kColumns : 1;
  const device::Grid grid = blocks(rows * tiles);
  const bool packed = dense_runs(p.k_cache, 16);
  if (p.k_cache.dtype == TK_BF16)
    device::launch(score_kernel<bf16>, grid, kColumns, 0, stream, p, tiles, packed);
  else if (p.k_cache.dtype == TK_F16)
    device::launch(score_kernel<f16>, grid, kColumns, 0, stream, p, tiles, packed);
  else
    device::launch(score_kernel<float>, grid, kColumns, 0, stream, p, tiles, packed);
}

constexpr Launch<ScoreParams> kPortable{[](const ScoreParams&, device::Carver&) {},
                                        launch_portable};

struct Score {
  static constexpr const toolkit::Contract& contract = score::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    device::Carver nothing(nullptr);
    launch_portable(score_params(call.args), nothing, call.stream);
  }
};
DEVICE_OP(Score)

}  // namespace

ScoreParams score_params(const toolkit::Args& args) {
  ScoreParams p{};
  p.q = tensor_of<3>(args.tensor("q"));
  p.k_cache = tensor_of<4>(args.tensor("k_cache"));
  p.page_table = tensor_of<2>(args.tensor("page_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.positions = tensor_of<1>(args.tensor("query_positions"));
  p.lengths = tensor_of<1>(args.tensor("sequence_lengths"));
  p.logits = tensor_of<2>(args.tensor("logits"));
  p.visible = tensor_of<1>(args.tensor("visible_blocks"));
  p.ratio = args.integer("compress_ratio");
  p.divisor = float(score::divisor(args));
  p.fill = true;
  return p;
}

// Before any file's start-up code runs.
constinit Launch<ScoreParams> tuned_score{}, score_of_pages{};

void launch_score(const ScoreParams& p, void* stream) {
  device::Carver nothing(nullptr);
  try {
    if (score_of_pages.launch) return score_of_pages.launch(p, nothing, stream);
  } catch (const device::Unsupported&) {
  }
  launch_best(tuned_score, kPortable, p, nothing, stream);
}

}  // namespace qsa
