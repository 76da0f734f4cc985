// SPDX-License-Identifier: Apache-2.0
// tq.merge: output = sum e^(lse_s - m) o_s / sum e^(lse_s - m) over the splits that hold tokens. BASE e.
#include "tq/merge.h"

#include "reference/reader.h"
#include "reference/tq/error.h"

namespace reference::tq {
namespace {

struct Parts {
  const Reader& mid;
  int64_t b, h;
  double at(int64_t split, int64_t d) const { return mid.real(b, h, split, d); }
};

// The splits in use: [s*len, min((s+1)*len, tokens)) holds a token.
int64_t used_splits(int64_t tokens, int64_t splits) {
  if (tokens <= 0) return 0;
  const int64_t length = tokens / splits + (tokens % splits != 0);
  return tokens / length + (tokens % length != 0);
}

void merge_head(const Parts& parts, int64_t used, int64_t head, int64_t dim, Output& output,
                Output& lse, Findings& findings) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<int64_t> live;  // -inf weighs 0 and is not looked at further
  double top = -kInf;
  for (int64_t s = 0; s < used; ++s) {
    const double l = parts.at(s, dim);
    if (std::isnan(l) || l == kInf) {
      findings.add("batch " + std::to_string(parts.b) + ", head " + std::to_string(parts.h) + ", split " +
                   std::to_string(s) + ": lse is NaN or +inf; not judged");
      std::fill_n(output.judged.begin() + head * dim, dim, uint8_t{0});
      lse.judged[head] = 0;
      return;
    }
    if (l == -kInf) continue;
    live.push_back(s);
    top = std::max(top, l);
  }
  if (live.empty()) {
    lse.value[head] = -kInf;
    return;  // output 0 exactly
  }
  double sum = 0, low = 0, high = 0;
  std::vector<double> weight, error;
  for (int64_t s : live) {
    const double l = parts.at(s, dim), w = std::exp(l - top);
    const double e = kUnit * (kApproximate * (std::fabs(l) + std::fabs(top)) + 2 * kApproximate);
    weight.push_back(w);
    error.push_back(std::expm1(e));
    sum += w;
    low += w * std::exp(-e);
    high += w * std::exp(e);
  }
  const double adding =
      accumulation(2 * int64_t(live.size()), dim * output.shape[0] * output.shape[1]) + 2 * kApproximate * kUnit;
  for (int64_t d = 0; d < dim; ++d) {
    double value = 0, size = 0, moved = 0;
    for (size_t i = 0; i < live.size(); ++i) {
      value += weight[i] * parts.at(live[i], d) / sum;
      size += weight[i] * std::fabs(parts.at(live[i], d)) / sum;
    }
    for (size_t i = 0; i < live.size(); ++i)
      moved += weight[i] * error[i] * std::fabs(parts.at(live[i], d) - value) / low;
    const int64_t at = head * dim + d;
    if (!std::isfinite(value)) {
      findings.add("batch " + std::to_string(parts.b) + ", head " + std::to_string(parts.h) + ", dim " +
                   std::to_string(d) + ": a partial output is NaN or inf; not judged");
      output.judged[at] = 0;
      continue;
    }
    place(output, at, value, moved + adding * (size + std::fabs(value)) * (sum / low));
  }
  const double value = top + std::log(sum);
  place(lse, head, value,
        std::max(std::log(high / sum), std::log(sum / low)) + adding +
            kApproximate * kUnit * (std::fabs(top) + std::fabs(std::log(sum))));
}

Result oracle(const toolkit::Args& a) {
  const Reader mid(a.tensor("mid_o")), lens(a.tensor("seq_lens"));
  const int64_t batch = mid.size(0), heads = mid.size(1), dim = mid.size(3) - 1;
  Result result;
  Output output = real_output(toolkit::dtype_named(a.text("output_dtype")), {batch, heads, dim});
  Output lse = real_output(TK_F32, {batch, heads});
  {
    Findings findings(result.findings);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t used = used_splits(lens.integer(b), ::tq::merge::splits(a));
      for (int64_t h = 0; h < heads; ++h)
        merge_head({mid, b, h}, used, b * heads + h, dim, output, lse, findings);
    }
  }
  result.outputs.emplace("output", std::move(output));
  result.outputs.emplace("lse", std::move(lse));
  return result;
}

const Registration registration("tq.merge", oracle);

}  // namespace
}  // namespace reference::tq
