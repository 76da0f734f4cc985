// SPDX-License-Identifier: Apache-2.0
// A plugin with a fault, for tests of the tools: tq.rotate with Pi in place of its transpose, which
// only a non-symmetric Pi shows.
#include "tq/rotate.h"

namespace {

double query_element(const toolkit::TensorView& q, int64_t at) {
  if (q.dtype() == TK_F32) return q.data<float>()[at];
  const uint16_t bits = q.data<uint16_t>()[at];
  if (q.dtype() == TK_BF16) return __builtin_bit_cast(float, uint32_t(bits) << 16);
  return double(__builtin_bit_cast(_Float16, bits));
}

tk_status workspace(const tk_call*, uint64_t* bytes) {
  *bytes = 0;
  return TK_OK;
}

tk_status run(const tk_call* call) {
  const toolkit::Args a(tq::rotate::contract, *call);
  const auto q = a.tensor("query"), pi = a.tensor("Pi"), out = a.tensor("q_rot");
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t j = 0; j < q.size(2); ++j) {
        double sum = 0;
        for (int64_t i = 0; i < q.size(2); ++i)
          sum += query_element(q, b * q.stride(0) + h * q.stride(1) + i * q.stride(2)) *
                 pi.data<float>()[i * pi.stride(0) + j * pi.stride(1)];
        out.data<float>()[b * out.stride(0) + h * out.stride(1) + j * out.stride(2)] = float(sum);
      }
  return TK_OK;
}

}  // namespace

const tk_plugin* tk_plugin_query(uint32_t) {
  static const tk_op op{sizeof(tk_op), 0, "tq.rotate", "not-transposed", workspace, run, nullptr};
  static const tk_op* const ops[] = {&op};
  static const tk_plugin plugin{
      sizeof(tk_plugin), TK_ABI_VERSION, "wrong", "1", "simt", nullptr, ops, 1, 0};
  return &plugin;
}
