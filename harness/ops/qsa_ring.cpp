// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/qsa_ring.h"

#include <algorithm>
#include <stdexcept>

namespace harness {

double raw_key(const Random& random, int64_t request, int64_t position, int64_t d) {
  return random.stream("key", uint64_t(request)).normal(uint64_t(position) * 65536 + uint64_t(d));
}

namespace {

int64_t axis_position(const std::string& positions, int64_t position, int64_t axis) {
  return positions == "text" ? position : position * 3 + 100 * axis + 7;
}

Tensor positions_tensor(const RingShape& s, const Batch& batch) {
  const int64_t rows = batch.rows();
  Tensor base, out;
  if (s.positions == "text") {
    base = make_tensor(TK_I64, {rows});
    for (int64_t i = 0; i < rows; ++i) base.set_integer(i, batch.query_positions[size_t(i)]);
    return view(base, 0, {rows, 1, 3}, {1, 0, 0});
  }
  base = make_tensor(TK_I64, {3 * rows});
  out = s.positions == "mrope" ? view(base, 0, {rows, 1, 3}, {3, 3, 1})
                               : view(base, 0, {rows, 1, 3}, {1, 1, rows});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t axis = 0; axis < 3; ++axis)
      out.set_integer(i * 3 + axis,
                      axis_position(s.positions, batch.query_positions[size_t(i)], axis));
  return out;
}

}  // namespace

RingInputs make_ring_inputs(const RingShape& s, const Batch& batch, const Random& random) {
  const int64_t rows = batch.rows(), requests = std::max<int64_t>(batch.requests(), 1);
  if (s.stride != 0 && s.stride < s.dim)
    throw std::invalid_argument("ring: stride: expected 0 or at least dim, got " +
                                std::to_string(s.stride));
  RingInputs in;
  Tensor wide = make_tensor(s.dtype, {rows, s.stride ? s.stride : s.dim});
  fill_poison(wide);
  in.raw_keys = view(wide, 0, {rows, 1, s.dim}, {wide.strides[0], s.dim, 1});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < s.dim; ++d)
      in.raw_keys.set_real(i * s.dim + d, raw_key(random, batch.token_to_req[size_t(i)],
                                                  batch.query_positions[size_t(i)], d));
  in.raw_positions = positions_tensor(s, batch);

  const int64_t blocks = requests + 2;
  const std::vector<int64_t> order = random.stream("blocks").shuffle(blocks);
  in.table = from_integers(TK_I32, {order.begin(), order.begin() + requests}, {requests, 1});
  in.state = make_tensor(s.dtype, {blocks, s.ring, 1, s.dim});
  fill_poison(in.state);
  if (s.rope) {
    in.rope = make_tensor(TK_I64, {blocks, s.ring, 1, 3});
    fill_poison(in.rope);
  }
  for (int64_t r = 0; r < batch.requests(); ++r) {
    const int64_t first = batch.query_start_loc[size_t(r)];
    const int64_t chunk = first < batch.query_start_loc[size_t(r) + 1]
                              ? batch.query_positions[size_t(first)]
                              : batch.sequence_lengths[size_t(r)];
    for (int64_t p = std::max<int64_t>(0, chunk - s.ring); p < chunk; ++p) {
      const int64_t row = order[size_t(r)] * s.ring + p % s.ring;
      for (int64_t d = 0; d < s.dim; ++d)
        in.state.set_real(row * s.dim + d, raw_key(random, r, p, d));
      for (int64_t axis = 0; axis < 3 && s.rope; ++axis)
        in.rope.set_integer(row * 3 + axis, axis_position(s.positions, p, axis));
    }
  }
  return in;
}

}  // namespace harness
