// SPDX-License-Identifier: Apache-2.0
// qsa.compress: as many threads a row as its keys have 16-byte vectors; a block takes several rows.
// A row's keys are three dependent loads away (request, its first row and ring block, keys). The
// middle one is hidden where the requests are few: the block loads it for all of them at once.
#include "qsa/compress.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;
constexpr int kAxes = 3;    // of a position; a row has more threads than that
constexpr int kAtOnce = 4;  // members of a group whose loads are under way together

struct Group {
  bool live;
  int64_t end;         // position of the last member
  int64_t first_here;  // members from this position on are in this step, older ones in the ring
  int64_t ring_block;  // -1: invalid, members there count as zeros
};

// starts, rings: query_start_loc and the ring blocks of all requests, where p.few_requests.
template <class Starts, class Rings>
DEVICE_FUNCTION Group group_of(const CompressParams& p, int64_t row, Starts& starts, Rings& rings) {
  const int64_t requests = p.query_start_loc.size[0] - 1;
  int64_t first_row = 0, next_row = 0, block = -1, request = -1, end = 0, slot = -1;
  if (p.few_requests) {
    const int r = device::thread();
    if (r <= requests) first_row = load_index(p.query_start_loc, r);
    if (r < requests) block = load_index(p.ring_table, r, 0);
  }
  if (row < p.raw_keys.size[0]) {
    request = load_index(p.token_to_req, row);
    end = load_index(p.positions, row);
    slot = load_index(p.slots, row);
  }
  if (p.few_requests) {
    starts[device::thread()] = first_row;
    rings[device::thread()] = block;
    device::sync_block();
  }
  const Group dead{false, -1, 0, -1};
  if (request < 0 || request >= requests || end < p.ratio - 1 || slot < 0) return dead;
  if (p.few_requests) {
    first_row = starts[request];
    next_row = starts[request + 1];
    block = rings[request];
  } else {
    first_row = load_index(p.query_start_loc, request);
    next_row = load_index(p.query_start_loc, request + 1);
    block = load_index(p.ring_table, request, 0);
  }
  if (row < first_row || row >= next_row) return dead;
  const int64_t older = larger(first_row, row - p.ratio);  // a broken query_start_loc has any value
  return {true, end, end - (row - older), block < p.ring.size[0] ? block : -1};
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
  using Vector = Pack<T, kVector* int(sizeof(T))>;
  DEVICE_SHARED(int64_t, starts, kThreads);
  DEVICE_SHARED(int64_t, rings, kThreads);
  const int lanes = 1 << p.lanes_log2, lane = device::thread() & (lanes - 1);
  const int64_t rows = p.raw_keys.size[0];
  const int64_t row =
      int64_t{device::block_x()} * (kThreads >> p.lanes_log2) + (device::thread() >> p.lanes_log2);
  const Group g = group_of(p, row, starts, rings);
  if (row >= rows) return;
  // The member before this row's is in the row before, whatever query_start_loc says; rows that do
  // not exist are not read and count as zeros.
  const int64_t oldest = g.end - (p.ratio - 1), oldest_row = row - (p.ratio - 1);
  int64_t ring_row = 0;
  if (g.live && oldest < g.first_here) ring_row = remainder(oldest, p.ring.size[1]);

  int64_t first = 0;  // of axis `lane`; stored when the keys are under way
  if (g.live && lane < kAxes) {
    if (!p.rope.data) {
      first = oldest;  // text: one position for all axes, wherever the member is
    } else if (oldest >= g.first_here) {
      if (oldest_row >= 0) first = *element<const int64_t>(p.raw_positions, oldest_row, 0, lane);
    } else if (g.ring_block >= 0) {
      first = *element<const int64_t>(p.rope, g.ring_block, ring_row, 0, lane);
    }
  }

  const int64_t in_row = kVector > 1 ? 1 : p.raw_keys.stride[2];
  const int64_t in_ring = kVector > 1 ? 1 : p.ring.stride[3];
  const T* const ring = element<const T>(p.ring, g.ring_block < 0 ? 0 : g.ring_block);
  for (int64_t d = int64_t{lane} * kVector; d < p.raw_keys.size[2]; d += int64_t{lanes} * kVector) {
    float sum[kVector] = {};
    // Where the next member would be in this step and in the ring. Steps instead of products: a
    // block has few threads, and each instruction of this chain is waited for.
    int64_t position = oldest, next = oldest_row, place = ring_row;
    const T* step_key = element<const T>(p.raw_keys, next) + d * in_row;
    const T* ring_key = ring + place * p.ring.stride[1] + d * in_ring;
    // Oldest first: the order of the sum is the contract.
    DEVICE_ROLLED
    while (g.live && position <= g.end) {
      Vector member[kAtOnce]{};
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const bool in_step = position >= g.first_here;
        const T* const from = in_step ? step_key : ring_key;
        const bool readable = in_step ? next >= 0 : g.ring_block >= 0;
        if (readable && position <= g.end) member[i] = *reinterpret_cast<const Vector*>(from);
        ++position;
        ++next;
        step_key += p.raw_keys.stride[0];
        ring_key += p.ring.stride[1];
        if (++place == p.ring.size[1]) {
          place = 0;
          ring_key = ring + d * in_ring;
        }
      }
      DEVICE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        DEVICE_UNROLL
        for (int j = 0; j < kVector; ++j) sum[j] += device::to_float(member[i].x[j]);
      }
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
    *reinterpret_cast<Vector*>(element<T>(p.pooled, row) +
                               d * (kVector > 1 ? 1 : p.pooled.stride[2])) = mean;
  }
  if (lane < kAxes) *element<int64_t>(p.first_positions, row, lane) = first;
}

template <class T, int kVector>
void launch_vectors(CompressParams p, void* stream) {
  const int64_t rows = p.raw_keys.size[0], vectors = p.raw_keys.size[2] / kVector;
  p.lanes_log2 = 2;
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

void launch_portable(const CompressParams& params, device::Carver&, void* stream) {
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
void plan_portable(const CompressParams&, device::Carver&) {}

constexpr Launch<CompressParams> kPortable{plan_portable, launch_portable};

struct Compress {
  static constexpr const toolkit::Contract& contract = compress::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    device::Carver nothing(nullptr);
    launch_portable(compress_params(call.args), nothing, call.stream);
  }
};
DEVICE_OP(Compress)

}  // namespace

CompressParams compress_params(const toolkit::Args& args) {
  CompressParams p{};
  p.raw_keys = tensor_of<3>(args.tensor("raw_keys"));
  p.raw_positions = tensor_of<3>(args.tensor("raw_positions"));
  p.ring = tensor_of<4>(args.tensor("compressor_state_cache"));
  if (const auto rope = args.find("rope_cache")) p.rope = tensor_of<4>(rope);
  p.ring_table = tensor_of<2>(args.tensor("compressor_state_block_table"));
  p.token_to_req = tensor_of<1>(args.tensor("token_to_req"));
  p.query_start_loc = tensor_of<1>(args.tensor("query_start_loc"));
  p.positions = tensor_of<1>(args.tensor("logical_positions"));
  p.slots = tensor_of<1>(args.tensor("compressed_slots"));
  p.pooled = tensor_of<3>(args.tensor("pooled"));
  p.first_positions = tensor_of<2>(args.tensor("first_positions"));
  p.ratio = args.integer("compress_ratio");
  return p;
}

constinit Launch<CompressParams> tuned_compress{};  // before any file's start-up code runs

void launch_compress(const CompressParams& p, void* stream) {
  device::Carver nothing(nullptr);
  launch_best(tuned_compress, kPortable, p, nothing, stream);
}

}  // namespace qsa
