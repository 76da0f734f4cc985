// SPDX-License-Identifier: Apache-2.0
// qsa.compress: one block a row; the threads stride over the head dimension.
#include "qsa/compress.h"
#include "qsa/launches.h"

namespace qsa {
namespace {

constexpr int kThreads = 128;

struct Group {
  bool live;
  int64_t end;         // position of the last member
  int64_t first_row;   // the request's first row in this step
  int64_t first_here;  // its position: older members are in the ring
  int64_t ring_block;  // -1: invalid, members there count as zeros
};

DEVICE_FUNCTION Group group_of(const CompressParams& p, int64_t row) {
  Group g{false, 0, 0, 0, -1};
  const int64_t requests = p.query_start_loc.size[0] - 1;
  const int64_t request = load_index(p.token_to_req, row);
  if (request < 0 || request >= requests) return g;
  g.first_row = load_index(p.query_start_loc, request);
  g.end = load_index(p.positions, row);
  g.live = g.first_row <= row && row < load_index(p.query_start_loc, request + 1) &&
           g.end >= p.ratio - 1 && load_index(p.slots, row) >= 0;
  if (!g.live) return g;
  g.first_here = g.end - (row - g.first_row);
  const int64_t block = load_index(p.ring_table, request, 0);
  if (block >= 0 && block < p.ring.size[0]) g.ring_block = block;
  return g;
}

// Where a member is: a row of this step, or a row of the ring block; neither (-1, -1) counts as
// zero. A broken query_start_loc may point at rows that do not exist: they are not read.
struct Place {
  int64_t row, ring_row;
};

DEVICE_FUNCTION Place place_of(const CompressParams& p, const Group& g, int64_t position) {
  if (position >= g.first_here) {
    const int64_t row = g.first_row + (position - g.first_here);
    return {row >= 0 && row < p.raw_keys.size[0] ? row : -1, -1};
  }
  return {-1, g.ring_block < 0 ? -1 : position % p.ring.size[1]};
}

template <class T>
DEVICE_KERNEL(kThreads)
compress_kernel(CompressParams p) {
  const int64_t row = device::block_x();
  const Group g = group_of(p, row);
  for (int64_t d = device::thread(); d < p.raw_keys.size[2]; d += device::threads()) {
    float sum = 0.0f;
    if (g.live) {
      for (int64_t age = p.ratio - 1; age >= 0;
           --age) {  // oldest first: the order of the sum is the contract
        const Place at = place_of(p, g, g.end - age);
        if (at.row >= 0)
          sum += device::to_float(*element<const T>(p.raw_keys, at.row, 0, d));
        else if (at.ring_row >= 0)
          sum += device::to_float(*element<const T>(p.ring, g.ring_block, at.ring_row, 0, d));
      }
      sum = device::divide(sum, float(p.ratio));
    }
    *element<T>(p.pooled, row, 0, d) = device::from_float<T>(sum);
  }
  for (int axis = device::thread(); axis < 3; axis += device::threads()) {
    int64_t first = 0;
    if (g.live) {
      const int64_t position = g.end - (p.ratio - 1);
      const Place at = place_of(p, g, position);
      if (!p.rope.data)
        first = position;  // text: one position for all axes, wherever the member is
      else if (at.row >= 0)
        first = *element<const int64_t>(p.raw_positions, at.row, 0, axis);
      else if (at.ring_row >= 0)
        first = *element<const int64_t>(p.rope, g.ring_block, at.ring_row, 0, axis);
    }
    *element<int64_t>(p.first_positions, row, axis) = first;
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

}  // namespace

void launch_compress(const CompressParams& p, void* stream) {
  const int64_t rows = p.raw_keys.size[0];
  if (rows == 0) return;
  if (p.raw_keys.dtype == TK_BF16)
    device::launch(compress_kernel<bf16>, blocks(rows), kThreads, 0, stream, p);
  else if (p.raw_keys.dtype == TK_F16)
    device::launch(compress_kernel<f16>, blocks(rows), kThreads, 0, stream, p);
  else
    device::launch(compress_kernel<float>, blocks(rows), kThreads, 0, stream, p);
}

}  // namespace qsa
