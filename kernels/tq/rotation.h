// SPDX-License-Identifier: Apache-2.0
// y = x @ Pi^T, eight outputs a thread. Sums run in double: products of two fp32 numbers are exact
// there, so that codes next to a midpoint fall on the side the float64 definition says, and the
// rotated query is rounded only once.
#pragma once

#include "tq/slot_codes.h"

namespace tq {

struct Rotation {
  const float* data;  // [D,D]
  int64_t stride[2];
};

inline Rotation rotation_of(const Args& a) {
  const TensorView pi = a.tensor("Pi");
  return {pi.data<float>(), {pi.stride(0), pi.stride(1)}};
}

// y[e] = sum over j of x[j] * Pi[first + e][j], for the `count` <= 8 outputs from `first` on. x
// starts at element `at` of its tensor.
DEVICE_FUNCTION void rotate_group(const Rotation& pi, const void* x, tk_dtype dtype, int64_t at,
                                  int64_t step, int head_dim, int first, int count,
                                  double (&y)[kGroup]) {
  DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e) y[e] = 0;
  const float* rows = pi.data + first * pi.stride[0];
  for (int j = 0; j < head_dim; ++j) {
    const double xj = load_float(x, dtype, at + j * step);
    DEVICE_UNROLL
    for (int e = 0; e < kGroup; ++e)
      if (e < count) y[e] += xj * static_cast<double>(rows[e * pi.stride[0] + j * pi.stride[1]]);
  }
}

struct RotateParams {
  Strided<3> query;  // [B,Hq,D]
  Rotation pi;
  Strided<3> q_rot;  // [B,Hq,D] f32
  int64_t heads;
  int head_dim, groups;
  int64_t items;  // B * Hq * groups
};

DEVICE_FUNCTION void rotate_item(const RotateParams& p, int64_t item) {
  const int first = static_cast<int>(item % p.groups) * kGroup;
  const int64_t head = item / p.groups % p.heads, row = item / p.groups / p.heads;
  const int count = p.head_dim - first < kGroup ? p.head_dim - first : kGroup;
  double y[kGroup];
  rotate_group(p.pi, p.query.data, p.query.dtype,
               row * p.query.stride[0] + head * p.query.stride[1], p.query.stride[2], p.head_dim,
               first, count, y);
  const int64_t at = row * p.q_rot.stride[0] + head * p.q_rot.stride[1];
  DEVICE_UNROLL
  for (int e = 0; e < kGroup; ++e)
    if (e < count)
      store_float(p.q_rot.data, TK_F32, at + (first + e) * p.q_rot.stride[2],
                  static_cast<float>(y[e]));
}

inline RotateParams rotate_params(const Args& a, const Strided<3>& q_rot) {
  const TensorView q = a.tensor("query");
  const int head_dim = static_cast<int>(q.size(2)), groups = groups_of(head_dim);
  return {strided<3>(q),
          rotation_of(a),
          q_rot,
          q.size(1),
          head_dim,
          groups,
          q.size(0) * q.size(1) * groups};
}

}  // namespace tq
