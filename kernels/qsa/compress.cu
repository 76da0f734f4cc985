// SPDX-License-Identifier: Apache-2.0
// qsa.compress: as many threads a row as its keys have 16-byte vectors; a block takes several rows.
// A row's keys are three dependent loads away (request, its first row and ring block, keys). The
// middle one is hidden where the requests are few: the block loads it for all of them at once.
#include "qsa/compress.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 4;  // members of a group whose loads are under way together

struct Group {
  bool live;
  int64_t end;         // position of the last member
  int64_t first_row;   // the request's first row in this step
  int64_t first_here;  // its position: older members are in the ring
  int64_t ring_block;  // -1: invalid, members there count as zeros
};

// starts, rings: query_start_loc and the ring blocks of all requests, where p.few_requests.
template <class Starts, class Rings>
DEVICE_FUNCTION Group group_of(const CompressParams& p, int64_t row, Starts& starts, Rings& rings) {
  const int64_t requests = p.query_start_loc.size[0] - 1;
  Group g{false, 0, 0, 0, -1};
  int64_t next_row = 0, block = -1, request = -1, slot = -1;
  if (p.few_requests) {
    const int r = device::thread();
    if (r <= requests) next_row = load_index(p.query_start_loc, r);
    if (r < requests) block = load_index(p.ring_table, r, 0);
  }
  if (row < p.raw_keys.size[0]) {
    request = load_index(p.token_to_req, row);
    g.end = load_index(p.positions, row);
    slot = load_index(p.slots, row);
  }
  if (p.few_requests) {
    starts[device::thread()] = next_row;
    rings[device::thread()] = block;
    device::sync_block();
  }
  if (request < 0 || request >= requests) return g;
  if (p.few_requests) {
    g.first_row = starts[request];
    next_row = starts[request + 1];
    block = rings[request];
  } else {
    g.first_row = load_index(p.query_start_loc, request);
    next_row = load_index(p.query_start_loc, request + 1);
    block = load_index(p.ring_table, request, 0);
  }
  g.live = g.first_row <= row && row < next_row && g.end >= p.ratio - 1 && slot >= 0;
  g.first_here = g.end - (row - g.first_row);
  if (block >= 0 && block < p.ring.size[0]) g.ring_block = block;
  return g;
}

// Divisions of 64 bits take a hundred instructions.
DEVICE_FUNCTION int64_t remainder(int64_t position, int64_t rows) {
  if (position <= UINT32_MAX && rows <= UINT32_MAX)
    return int64_t{uint32_t(position) % uint32_t(rows)};
  return position % rows;
}

template <class T, int kVector>
DEVICE_KERNEL(kThreads)
compress_kernel(CompressParams p) {
  using Vector = Pack<T, kVector * int(sizeof(T))>;
  DEVICE_SHARED(int64_t, starts, kThreads);
  DEVICE_SHARED(int64_t, rings, kThreads);
  const int lanes = 1 << p.lanes_log2, lane = device::thread() & (lanes - 1);
  const int64_t rows = p.raw_keys.size[0];
  const int64_t row = int64_t{device::block_x()} * (kThreads >> p.lanes_log2) +
                      (device::thread() >> p.lanes_log2);
  const Group g = group_of(p, row, starts, rings);
  if (row >= rows) return;
  // Members from first_here on are rows of this step, older ones rows of the ring block. A broken
  // query_start_loc may point at rows that do not exist: they are not read and count as zeros.
  const int64_t oldest = g.end - (p.ratio - 1), to_row = g.first_row - g.first_here;
  const auto exists = [&](int64_t r) { return r >= 0 && r < rows; };
  int64_t ring_row = 0;
  if (g.live && oldest < g.first_here) ring_row = remainder(oldest, p.ring.size[1]);

  for (int axis = lane; axis < 3; axis += lanes) {
    int64_t first = 0;
    if (g.live) {
      if (!p.rope.data) {
        first = oldest;  // text: one position for all axes, wherever the member is
      } else if (oldest >= g.first_here) {
        if (exists(oldest + to_row))
          first = *element<const int64_t>(p.raw_positions, oldest + to_row, 0, axis);
      } else if (g.ring_block >= 0) {
        first = *element<const int64_t>(p.rope, g.ring_block, ring_row, 0, axis);
      }
    }
    *element<int64_t>(p.first_positions, row, axis) = first;
  }

  const T* const ring = element<const T>(p.ring, g.ring_block < 0 ? 0 : g.ring_block);
  for (int64_t d = int64_t{lane} * kVector; d < p.raw_keys.size[2]; d += int64_t{lanes} * kVector) {
    float sum[kVector] = {};
    int64_t place = ring_row;
    // Oldest first: the order of the sum is the contract.
    DEVICE_ROLLED
    for (int64_t o = 0; g.live && o < p.ratio; o += kAtOnce) {
      Vector member[kAtOnce]{};
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t position = oldest + o + i;
        const T* from = nullptr;
        if (position < g.first_here) {
          if (g.ring_block >= 0) from = ring + place * p.ring.stride[1] + d * p.ring.stride[3];
          if (++place == p.ring.size[1]) place = 0;
        } else if (exists(position + to_row)) {
          from = element<const T>(p.raw_keys, position + to_row, 0, d);
        }
        if (from && position <= g.end) member[i] = *reinterpret_cast<const Vector*>(from);
      }
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        DEVICE_UNROLL
        for (int j = 0; j < kVector; ++j) sum[j] += device::to_float(member[i].x[j]);
    }
    Vector mean;
    DEVICE_UNROLL
    for (int j = 0; j < kVector; ++j) {
      // The reciprocal of a power of two rounds as the division does.
      if (kVector > 1 || p.inverse != 0.0f)
        sum[j] *= p.inverse;
      else
        sum[j] = device::divide(sum[j], float(p.ratio));
      mean.x[j] = device::from_float<T>(sum[j]);
    }
    *reinterpret_cast<Vector*>(element<T>(p.pooled, row, 0, d)) = mean;
  }
}

struct Compress {
  static constexpr const toolkit::Contract& contract = compress::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    CompressParams p{};
    p.raw_keys = tensor_of<3>(call.tensor("raw_keys"));
    p.raw_positions = tensor_of<3>(call.tensor("raw_positions"));
    p.ring = tensor_of<4>(call.tensor("compressor_state_cache"));
    if (const auto rope = call.args.find("rope_cache")) p.rope = tensor_of<4>(rope);
    p.ring_table = tensor_of<2>(call.tensor("compressor_state_block_table"));
    p.token_to_req = tensor_of<1>(call.tensor("token_to_req"));
    p.query_start_loc = tensor_of<1>(call.tensor("query_start_loc"));
    p.positions = tensor_of<1>(call.tensor("logical_positions"));
    p.slots = tensor_of<1>(call.tensor("compressed_slots"));
    p.pooled = tensor_of<3>(call.tensor("pooled"));
    p.first_positions = tensor_of<2>(call.tensor("first_positions"));
    p.ratio = call.args.integer("compress_ratio");
    launch_compress(p, call.stream);
  }
};
DEVICE_OP(Compress)

template <class T, int kVector>
void launch_vectors(CompressParams p, void* stream) {
  const int64_t rows = p.raw_keys.size[0], vectors = p.raw_keys.size[2] / kVector;
  while ((1 << p.lanes_log2) < kThreads && (1 << p.lanes_log2) < vectors) ++p.lanes_log2;
  const int64_t rows_here = kThreads >> p.lanes_log2;
  device::launch(compress_kernel<T, kVector>, blocks((rows + rows_here - 1) / rows_here), kThreads,
                 0, stream, p);
}
template <class T>
void launch_type(const CompressParams& p, void* stream) {
  constexpr int kBytes = 16;
  if (p.inverse != 0.0f && dense_runs(p.raw_keys, kBytes) && dense_runs(p.ring, kBytes) &&
      dense_runs(p.pooled, kBytes))
    return launch_vectors<T, kBytes / int(sizeof(T))>(p, stream);
  launch_vectors<T, 1>(p, stream);
}

}  // namespace

void launch_compress(const CompressParams& params, void* stream) {
  CompressParams p = params;
  if (p.raw_keys.size[0] == 0) return;
  p.few_requests = p.query_start_loc.size[0] <= kThreads;
  p.inverse = (p.ratio & (p.ratio - 1)) == 0 ? 1.0f / float(p.ratio) : 0.0f;
  if (p.raw_keys.dtype == TK_BF16)
    launch_type<bf16>(p, stream);
  else if (p.raw_keys.dtype == TK_F16)
    launch_type<f16>(p, stream);
  else
    launch_type<float>(p, stream);
}

}  // namespace qsa
