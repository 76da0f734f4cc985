// SPDX-License-Identifier: Apache-2.0
// roof.mma: fragments are loaded once; the loop holds nothing but matrix instructions.
#include "device/device.h"
#include "device/launch.h"
#include "device/op.h"
#include "roof/mma.h"

namespace roof {
namespace {

template <class T>
DEVICE_KERNEL(mma::kThreads)
mma_kernel(const T* a, const T* b, int64_t iterations, float* c, float* sums) {
  using M = device::Mma<T>;
  static_assert(M::M == 16 && M::K == 16 && 16 % M::N == 0);
  constexpr int kParts = 16 / M::N;  // instructions of one 16x16x16 product
  constexpr int kTiles = mma::kProducts * kParts;
  DEVICE_SHARED(float, scratch, 32);
  typename M::A left;
  typename M::B right[kParts];
  typename M::C tile[kTiles];
  DEVICE_UNROLL
  for (int e = 0; e < M::A::kSize; ++e) left.set(e, a[M::a_row(e) * 16 + M::a_k(e)].bits);
  DEVICE_UNROLL
  for (int p = 0; p < kParts; ++p) {
    DEVICE_UNROLL
    for (int e = 0; e < M::B::kSize; ++e)
      right[p].set(e, b[M::b_k(e) * 16 + p * M::N + M::b_col(e)].bits);
  }
  for (int64_t i = 0; i < iterations; ++i) {
    DEVICE_UNROLL
    for (int t = 0; t < kTiles; ++t) M::multiply(tile[t], left, right[t % kParts]);
  }
  float sum = 0;
  DEVICE_UNROLL
  for (int t = 0; t < kTiles; ++t) {
    DEVICE_UNROLL
    for (int e = 0; e < M::C::kSize; ++e) {
      sum += tile[t].get(e);
      if (t < kParts && device::block_x() == 0 && device::wave() == 0)
        c[M::c_row(e) * 16 + t * M::N + M::c_col(e)] = tile[t].get(e);
    }
  }
  sum = device::block_sum(sum, scratch);
  if (device::thread() == 0) sums[device::block_x()] = sum;
}

template <class T>
void launch_mma(const device::OpCall& call) {
  device::launch(mma_kernel<T>, device::Grid{call.args.integer("blocks")}, mma::kThreads, 0,
                 call.stream, call.tensor("a").data<const T>(), call.tensor("b").data<const T>(),
                 call.args.integer("iterations"), call.tensor("c").data<float>(),
                 call.tensor("sums").data<float>());
}

struct MatrixProduct {
  static constexpr const toolkit::Contract& contract = mma::contract;
  static constexpr const char* implementation = "portable";
  static uint64_t workspace(const toolkit::Args&) { return 0; }
  static void run(const device::OpCall& call) {
    call.tensor("a").dtype() == TK_BF16 ? launch_mma<device::bf16>(call)
                                        : launch_mma<device::f16>(call);
  }
};
DEVICE_OP(MatrixProduct)

}  // namespace
}  // namespace roof
