// SPDX-License-Identifier: Apache-2.0
// qsa.compress for groups of four and up to a thousand requests, as decode has them: two trips to
// memory, and between them as few instructions as can be, because a cold block waits for its code
// and its parameters too. topk.md has the times.
#include <bit>

#include "device/nvidia.h"
#include "qsa/compress.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;
constexpr int kManyShares = 8;  // of up to 1023 requests
constexpr int kRatio = 4, kAxes = 3;

// A column of ids, int32 or int64.
struct Ids {
  const std::byte* data;
  int bytes;      // from one to the next
  uint32_t wide;  // all bits where they are int64
};

struct Params {
  Ids starts, table, requests, positions, slots;
  const std::byte *keys, *ring, *first_in_step, *rope;  // rope: null where there is none
  std::byte *pooled, *first;
  int rows, request_count, blocks, ring_rows, vectors;
  uint32_t ring_factor, ring_shift;
  int lanes_log2;  // of a row
  // Bytes from row to row, block to block, axis to axis.
  int key_row, ring_block, ring_row, step_row, step_axis, rope_block, rope_row, rope_axis;
  int pooled_row, first_row, first_axis;
};

// Both halves are loaded at once; of an int32 the same word twice.
DEVICE_FUNCTION int64_t load_id(const Ids& ids, int at) {
  const std::byte* from = ids.data + int64_t{at} * ids.bytes;
  const uint32_t low = *reinterpret_cast<const uint32_t*>(from);
  const uint32_t high = *reinterpret_cast<const uint32_t*>(from + (ids.wide & 4));
  const uint32_t sign = uint32_t(int32_t(low) >> 31);
  return int64_t(uint64_t{(high & ids.wide) | (sign & ~ids.wide)} << 32 | low);
}
DEVICE_FUNCTION int clamped(int64_t x, int low, int high) {
  return int(x < low ? low : x > high ? high : x);
}

// kShares: requests that a thread looks up for its block, so that no row waits for its request's id
// before it asks where that begins.
template <class T, int kShares>
DEVICE_KERNEL(kThreads)
compress_fours(Params p) {
  DEVICE_SHARED(int, starts, kShares* kThreads);
  DEVICE_SHARED(int, rings, kShares* kThreads);
  const int lane = device::thread() & ((1 << p.lanes_log2) - 1);
  const int row =
      device::block_x() * (kThreads >> p.lanes_log2) + (device::thread() >> p.lanes_log2);
  const int here = device::min(row, p.rows - 1);
  int64_t start[kShares], block_of[kShares];
  DEVICE_UNROLL
  for (int i = 0; i < kShares; ++i) {
    const int r = i * kThreads + device::thread();
    start[i] = load_id(p.starts, device::min(r, p.request_count));
    block_of[i] = load_id(p.table, device::min(r, p.request_count - 1));
  }
  const int64_t request = load_id(p.requests, here), end = load_id(p.positions, here),
                slot = load_id(p.slots, here);
  DEVICE_UNROLL
  for (int i = 0; i < kShares; ++i) {
    const int r = i * kThreads + device::thread();
    starts[r] = clamped(start[i], -kRatio, INT32_MAX);  // rows are compared with it
    rings[r] = block_of[i] >= 0 && block_of[i] < p.blocks ? int(block_of[i]) : -1;
  }
  device::sync_block();
  if (row >= p.rows) return;

  const bool known = request >= 0 && request < p.request_count;
  const int own = known ? int(request) : 0;
  const int first_row = starts[own], next_row = starts[own + 1], block = rings[own];
  const bool live = known && end >= kRatio - 1 && slot >= 0 && row >= first_row && row < next_row;
  const int64_t oldest = end - (kRatio - 1);
  const uint32_t low = uint32_t(oldest);
  const uint32_t turns = uint32_t(uint64_t{low} * p.ring_factor >> p.ring_shift);
  int place = live ? int(low - turns * uint32_t(p.ring_rows)) : 0;
  if (live && oldest > INT32_MAX) place = int(oldest % p.ring_rows);

  // The member before this row's is in the row before, whatever query_start_loc says; rows that do
  // not exist are not read and count as zeros, and so do those of a ring that does not exist.
  const int64_t column = int64_t{lane} * 16;
  const std::byte* const key = p.keys + int64_t{row} * p.key_row + column;
  const std::byte* const ring = p.ring + int64_t{block} * p.ring_block + column;
  const int oldest_row = row - (kRatio - 1);
  device::Words4 member[kRatio];
  DEVICE_UNROLL
  for (int o = 0; o < kRatio; ++o) {
    const bool in_step = oldest_row + o >= first_row;
    const int at = place + o < p.ring_rows ? place + o : place + o - p.ring_rows;
    const std::byte* from =
        in_step ? key + int64_t{o - (kRatio - 1)} * p.key_row : ring + int64_t{at} * p.ring_row;
    const bool readable = live && lane < p.vectors && (in_step ? oldest_row + o >= 0 : block >= 0);
    member[o] = device::Words4{};
    if (readable) member[o] = device::load16<device::Words4>(from);
  }
  int64_t first = 0;  // of axis `lane`
  if (live && lane < kAxes) {
    if (!p.rope) {
      first = oldest;  // text: one position for all axes, wherever the member is
    } else if (oldest_row >= first_row) {
      if (oldest_row >= 0)
        first = *reinterpret_cast<const int64_t*>(
            p.first_in_step + int64_t{oldest_row} * p.step_row + int64_t{lane} * p.step_axis);
    } else if (block >= 0) {
      first = *reinterpret_cast<const int64_t*>(p.rope + int64_t{block} * p.rope_block +
                                                int64_t{place} * p.rope_row +
                                                int64_t{lane} * p.rope_axis);
    }
  }

  device::Words4 mean;
  DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    float low = 0, high = 0;  // oldest first: the order of the sum is the contract
    DEVICE_UNROLL
    for (int o = 0; o < kRatio; ++o) {
      low += device::low_half<T>(member[o].x[i]);
      high += device::high_half<T>(member[o].x[i]);
    }
    mean.x[i] = device::pack_halves<T>(low * (1.0f / kRatio), high * (1.0f / kRatio));
  }
  if (lane < p.vectors) device::store16(p.pooled + int64_t{row} * p.pooled_row + column, mean);
  if (lane < kAxes)
    *reinterpret_cast<int64_t*>(p.first + int64_t{row} * p.first_row +
                                int64_t{lane} * p.first_axis) = first;
}

void need(bool fact, const char* what) {
  if (!fact) throw device::Unsupported(std::string("because it needs ") + what);
}
template <int kRank>
int byte_stride(const Tensor<kRank>& t, int dim) {
  const int64_t bytes = t.stride[dim] * toolkit::bytes_of(t.dtype);
  need(bytes == int32_t(bytes), "strides below 2 GiB");
  return int(bytes);
}
template <int kRank>
Ids ids_of(const Tensor<kRank>& t) {
  return {static_cast<const std::byte*>(t.data), byte_stride(t, 0), t.dtype == TK_I64 ? ~0u : 0};
}

void refuse(const CompressParams& p, device::Carver&) {
  need(p.ratio == kRatio, "groups of 4");
  need(p.raw_keys.dtype != TK_F32, "keys in bf16 or f16");
  need(dense_runs(p.raw_keys, 16) && dense_runs(p.ring, 16) && dense_runs(p.pooled, 16),
       "keys whose rows are contiguous and aligned to 16 bytes");
  need(p.raw_keys.size[2] <= 8 * kThreads, "keys of at most 1024 elements");
  need(p.query_start_loc.size[0] <= kManyShares * kThreads, "at most 1023 requests");
  need(p.raw_keys.size[0] <= INT32_MAX - kThreads, "at most 2147483519 rows");
  need(p.ring.size[0] <= INT32_MAX && p.ring.size[1] <= INT32_MAX, "fewer ring rows");
}

Params params(const CompressParams& c) {
  Params p{};
  p.starts = ids_of(c.query_start_loc);
  p.table = ids_of(c.ring_table);
  p.requests = ids_of(c.token_to_req);
  p.positions = ids_of(c.positions);
  p.slots = ids_of(c.slots);
  p.keys = static_cast<const std::byte*>(c.raw_keys.data);
  p.ring = static_cast<const std::byte*>(c.ring.data);
  p.first_in_step = static_cast<const std::byte*>(c.raw_positions.data);
  p.rope = static_cast<const std::byte*>(c.rope.data);
  p.pooled = static_cast<std::byte*>(c.pooled.data);
  p.first = static_cast<std::byte*>(c.first_positions.data);
  p.rows = int(c.raw_keys.size[0]);
  p.request_count = int(c.query_start_loc.size[0] - 1);
  p.blocks = int(c.ring.size[0]);
  p.ring_rows = int(c.ring.size[1]);
  p.vectors = int(c.raw_keys.size[2] / 8);
  const uint32_t divisor = uint32_t(p.ring_rows);
  p.ring_shift = 31 + uint32_t(std::bit_width(divisor - 1));
  p.ring_factor = uint32_t(((uint64_t{1} << p.ring_shift) + divisor - 1) / divisor);
  p.lanes_log2 = 2;
  while ((1 << p.lanes_log2) < p.vectors) ++p.lanes_log2;
  p.key_row = byte_stride(c.raw_keys, 0);
  p.ring_block = byte_stride(c.ring, 0);
  p.ring_row = byte_stride(c.ring, 1);
  p.step_row = byte_stride(c.raw_positions, 0);
  p.step_axis = byte_stride(c.raw_positions, 2);
  if (p.rope) {
    p.rope_block = byte_stride(c.rope, 0);
    p.rope_row = byte_stride(c.rope, 1);
    p.rope_axis = byte_stride(c.rope, 3);
  }
  p.pooled_row = byte_stride(c.pooled, 0);
  p.first_row = byte_stride(c.first_positions, 0);
  p.first_axis = byte_stride(c.first_positions, 1);
  return p;
}

void launch_tuned(const CompressParams& c, device::Carver& nothing, void* stream) {
  refuse(c, nothing);
  if (c.raw_keys.size[0] == 0) return;
  const Params p = params(c);
  const int rows_here = kThreads >> p.lanes_log2;
  const device::Grid grid = blocks((int64_t{p.rows} + rows_here - 1) / rows_here);
  const bool few = p.request_count < kThreads;
  const auto kernel = c.raw_keys.dtype == TK_BF16
                          ? (few ? compress_fours<bf16, 1> : compress_fours<bf16, kManyShares>)
                          : (few ? compress_fours<f16, 1> : compress_fours<f16, kManyShares>);
  device::launch(kernel, grid, kThreads, 0, stream, p);
}

struct CompressTuned {
  static constexpr const toolkit::Contract& contract = compress::contract;
  static constexpr const char* implementation = "sm_80";
  static uint64_t workspace(const toolkit::Args& args) {
    device::Carver nothing(nullptr);
    refuse(compress_params(args), nothing);
    return 0;
  }
  static void run(const device::OpCall& call) {
    device::Carver nothing(nullptr);
    launch_tuned(compress_params(call.args), nothing, call.stream);
  }
};
DEVICE_OP(CompressTuned)

const bool offered = [] {
  tuned_compress = {refuse, launch_tuned};
  return true;
}();

}  // namespace
}  // namespace qsa
