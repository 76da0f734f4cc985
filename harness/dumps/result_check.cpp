// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/result_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "toolkit/dtype.h"

namespace harness {

namespace {

std::string text_of(tk_dtype dtype, const Shape& shape) {
  return std::string(toolkit::name_of(dtype)) + " " + toolkit::to_text(shape);
}

// Bytes that a program can still get; all of the machine's where /proc does not say.
double available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::strtod(line.c_str() + 13, nullptr) * 1024;
  return double(::sysconf(_SC_PHYS_PAGES)) * double(::sysconf(_SC_PAGE_SIZE));
}

}  // namespace

void check_results(const Card& card, const Case& made, const TensorMap& results,
                   const std::string& prefix) {
  const HostCall call(made);
  const toolkit::Args args(card.contract(), call.call());
  std::vector<toolkit::OutputSpec> outputs = card.contract().outputs(args);
  for (const toolkit::TensorSpec& spec : card.contract().tensors)
    if (spec.role == toolkit::Role::in_place)
      if (const toolkit::TensorView t = args.find(spec.name))
        outputs.push_back({spec.name, t.dtype(), t.shape()});
  for (const auto& [name, t] : results)
    for (const toolkit::OutputSpec& o : outputs)
      if (o.name == name && (t.dtype != o.dtype || t.shape != o.shape))
        throw toolkit::Violation(card.op(), prefix + name, text_of(o.dtype, o.shape),
                                 text_of(t.dtype, t.shape));
}

void check_room(const Card& card, const Case& made) {
  constexpr double kGiB = 1 << 30;
  constexpr int kOracle = 2 * sizeof(double);  // value and bound of an element
  const HostCall call(made);
  const double available = available_bytes();
  for (const auto& o : card.contract().outputs(toolkit::Args(card.contract(), call.call()))) {
    double elements = 1;
    for (const int64_t size : o.shape) elements *= double(size);
    const double needs = elements * (toolkit::bytes_of(o.dtype) + kOracle);
    if (needs > available)
      throw toolkit::Violation(
          card.op(), o.name,
          fmt::format("at most {:.3g} GiB, which are available here", available / kGiB),
          fmt::format("{}, which needs {:.3g} GiB with its oracle", text_of(o.dtype, o.shape),
                      needs / kGiB));
  }
}

}  // namespace harness
