// SPDX-License-Identifier: Apache-2.0
// tq.rotate: q_rot = float(query) @ Pi^T. A wave takes 8 queries and 4 of their outputs, lane j the
// elements j, j + kWave ... of the sums, so that queries and rows of Pi are read in whole lines and
// all of a head's at once: with few queries only latency counts. The 32 sums are added over the
// lanes by halving: each exchange leaves a lane half as many.
#include "device/launch.h"
#include "device/op.h"
#include "tq/rotate.h"
#include "tq/rotation.h"

namespace tq::rotate {

inline constexpr int kQueries = 8, kOutputs = 4, kSums = kQueries * kOutputs;
inline constexpr int kBatch = 4;  // elements of each that a lane has in flight
static_assert(kSums <= device::kWave);

// Adds the first 2 Half sums over pairs of lanes, then halves of those: sum number i over all lanes
// ends up in sum[0] of the lanes for which this returns i.
template <int Half>
DEVICE_FUNCTION int sum_over_lanes(float (&sum)[kSums], int mask) {
  if constexpr (Half == 0) {
    for (; mask > 0; mask /= 2) sum[0] += device::shuffle_xor(sum[0], mask);
    return 0;
  } else {
    const bool upper = (device::lane() & mask) != 0;
    DEVICE_UNROLL
    for (int i = 0; i < Half; ++i) {
      const float keep = upper ? sum[i + Half] : sum[i], give = upper ? sum[i] : sum[i + Half];
      sum[i] = keep + device::shuffle_xor(give, mask);
    }
    return sum_over_lanes<Half / 2>(sum, mask / 2) + (upper ? Half : 0);
  }
}

struct Params {
  Strided<3> query;  // [B,Hq,D]
  Rotation pi;
  Strided<3> q_rot;  // [B,Hq,D] f32
  int64_t heads, queries;
  int head_dim, tiles;  // tiles of outputs
  int64_t items;        // tiles of queries * tiles of outputs
};

template <class T>
DEVICE_FUNCTION void rotate_tile(const Params& p, int64_t item) {
  const int first_output = static_cast<int>(item % p.tiles) * kOutputs;
  const int64_t first_query = item / p.tiles * kQueries;
  const T* query[kQueries];
  const float* row[kOutputs];
  DEVICE_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    const int64_t n = first_query + q < p.queries ? first_query + q : p.queries - 1;
    query[q] = static_cast<const T*>(p.query.data) + n / p.heads * p.query.stride[0] +
               n % p.heads * p.query.stride[1];
  }
  DEVICE_UNROLL
  for (int o = 0; o < kOutputs; ++o)
    row[o] = p.pi.data + device::min(first_output + o, p.head_dim - 1) * p.pi.stride[0];

  float sum[kSums] = {};
  for (int begin = device::lane(); begin - device::lane() < p.head_dim;
       begin += device::kWave * kBatch) {
    float x[kBatch][kQueries], r[kBatch][kOutputs];
    DEVICE_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int64_t j = begin + b * device::kWave;
      const bool any = j < p.head_dim;
      DEVICE_UNROLL
      for (int q = 0; q < kQueries; ++q)
        x[b][q] = any ? device::to_float(query[q][j * p.query.stride[2]]) : 0;
      DEVICE_UNROLL
      for (int o = 0; o < kOutputs; ++o) r[b][o] = any ? row[o][j * p.pi.stride[1]] : 0;
    }
    DEVICE_UNROLL
    for (int b = 0; b < kBatch; ++b) DEVICE_UNROLL
    for (int i = 0; i < kSums; ++i)
      sum[i] = device::fma(x[b][i / kOutputs], r[b][i % kOutputs], sum[i]);
  }
  const int index = sum_over_lanes<kSums / 2>(sum, device::kWave / 2);
  const int64_t n = first_query + index / kOutputs;
  const int d = first_output + index % kOutputs;
  if (n < p.queries && d < p.head_dim && device::lane() % (device::kWave / kSums) == 0)
    static_cast<float*>(p.q_rot.data)[n / p.heads * p.q_rot.stride[0] +
                                      n % p.heads * p.q_rot.stride[1] + d * p.q_rot.stride[2]] =
        sum[0];
}

template <class T>
DEVICE_KERNEL(kItemThreads)
rotate_queries(Params p) {
  for (int64_t i = int64_t{device::block_x()} * device::waves() + device::wave(); i < p.items;
       i += int64_t{device::blocks_x()} * device::waves())
    rotate_tile<T>(p, i);
}

struct Rotate {
  static constexpr const toolkit::Contract& contract = rotate::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    const TensorView q = call.tensor("query");
    Params p{};
    p.query = strided<3>(q);
    p.pi = rotation_of(call.args);
    p.q_rot = strided<3>(call.tensor("q_rot"));
    p.heads = q.size(1);
    p.queries = q.size(0) * q.size(1);
    p.head_dim = static_cast<int>(q.size(2));
    p.tiles = (p.head_dim + kOutputs - 1) / kOutputs;
    p.items = (p.queries + kQueries - 1) / kQueries * p.tiles;
    if (p.items == 0) return;
    const device::Grid grid = item_grid(p.items * device::kWave);
    if (p.query.dtype == TK_F16)
      device::launch(rotate_queries<device::f16>, grid, kItemThreads, 0, call.stream, p);
    else if (p.query.dtype == TK_BF16)
      device::launch(rotate_queries<device::bf16>, grid, kItemThreads, 0, call.stream, p);
    else
      device::launch(rotate_queries<float>, grid, kItemThreads, 0, call.stream, p);
  }
};

DEVICE_OP(Rotate)

}  // namespace tq::rotate
