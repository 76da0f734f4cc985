// SPDX-License-Identifier: Apache-2.0
// tq.rotate: q_rot = query @ Pi^T, i.e. q_rot[i] = sum_j Pi[i][j] q[j].
#include "tq/rotate.h"

#include <Eigen/Dense>

#include "reference/reader.h"
#include "reference/tq/error.h"

namespace reference::tq {
namespace {

void rotate_all(const toolkit::Args& a, Output& out, Findings findings) {
  const Reader query(a.tensor("query")), pi(a.tensor("Pi"));
  const int64_t batch = query.size(0), heads = query.size(1), dim = query.size(2);
  Eigen::MatrixXd rotation(dim, dim);
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = 0; j < dim; ++j) rotation(i, j) = pi.real(i, j);
  const Eigen::MatrixXd magnitudes = rotation.cwiseAbs();
  const double relative = accumulation(dim, batch * heads * dim);
  Eigen::VectorXd q(dim);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = (b * heads + h) * dim;
      query.row(q.data(), b, h);
      const Eigen::VectorXd value = rotation * q, size = magnitudes * q.cwiseAbs();
      if (!q.allFinite() || !(size.maxCoeff() < kFp32Largest)) {  // or fp32 overflows on the way
        findings.add("batch " + std::to_string(b) + ", head " + std::to_string(h) +
                     ": the query holds NaN, inf or numbers beyond fp32; not judged");
        std::fill_n(out.judged.begin() + row, dim, uint8_t{0});
        continue;
      }
      for (int64_t i = 0; i < dim; ++i) place(out, row + i, value[i], relative * size[i]);
    }
}

Result oracle(const toolkit::Args& a) {
  Result result;
  Output out = real_output(TK_F32, a.tensor("query").shape());
  rotate_all(a, out, Findings(result.findings));
  result.outputs.emplace("q_rot", std::move(out));
  return result;
}

const Registration registration("tq.rotate", oracle);

}  // namespace
}  // namespace reference::tq
