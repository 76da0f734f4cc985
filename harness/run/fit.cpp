// SPDX-License-Identifier: Apache-2.0
#include "harness/run/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "harness/run/placement.h"

namespace harness {

namespace {

constexpr double kGiB = 1 << 30;

}  // namespace

TensorMap unbacked_outputs(const Card& card, const Case& made) {
  const HostCall inputs(made);
  TensorMap outputs;
  for (const auto& o : card.contract().outputs(toolkit::Args(card.contract(), inputs.call())))
    outputs.emplace(o.name,
                    Tensor{o.dtype, 0, o.shape, dense_strides(o.shape), Storage::heap(1), 0});
  return outputs;
}

uint64_t placed_bytes(const Card& card, const Case& made) {
  std::vector<std::tuple<const Storage*, int64_t, int64_t>> pieces;
  uint64_t bytes = 0;
  for (const auto& [name, t] : made.inputs)
    if (t.count() > 0) {
      const auto [first, last] = extent(t);
      pieces.emplace_back(t.storage.get(), first, last);
    }
  for (const auto& [name, t] : unbacked_outputs(card, made))
    bytes += t.count() * toolkit::bytes_of(t.dtype);
  std::ranges::sort(pieces);
  const Storage* storage = nullptr;
  int64_t covered = 0;
  for (const auto& [in, first, last] : pieces) {
    if (in != storage) covered = first;
    storage = in;
    if (last > covered) bytes += last - std::max(first, covered);
    covered = std::max(covered, last);
  }
  return bytes;
}

uint64_t workspace_bytes(const Implementation& implementation, const Card& card, const Case& made) {
  const TensorMap outputs = unbacked_outputs(card, made);
  const HostCall host(made, outputs);
  tk_call call = host.call();
  std::array<char, 1024> message{};
  call.message = message.data();
  call.message_bytes = message.size();
  uint64_t bytes = 0;
  return implementation.op->workspace(&call, &bytes) == TK_OK ? bytes : 0;
}

std::string why_too_big(const Device& device, const Implementation& implementation,
                        const Card& card, const Case& made, double fraction) {
  const double has = device.info().memory_bytes;
  const double needs =
      static_cast<double>(placed_bytes(card, made)) + workspace_bytes(implementation, card, made);
  if (has == 0 || needs <= fraction * has) return {};
  return fmt::format(
      "needs {:.3g} GiB of {:.3g} GiB, of which {:.3g} % may be used (--mem-fraction)",
      needs / kGiB, has / kGiB, 100 * fraction);
}

}  // namespace harness
