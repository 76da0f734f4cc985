// SPDX-License-Identifier: Apache-2.0
#include "cli/outputs.h"

#include <fmt/format.h>

#include <filesystem>

#include "harness/plugins/errors.h"

namespace cli {

bool same_file(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto whole = [&](const std::string& path) {
    // (A new file without a folder in its name would stay without one.)
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  };
  return whole(a) == whole(b);
}

void check_outputs(const std::vector<std::string>& inputs,
                   const std::vector<std::string>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& out = outputs[i];
    if (out.empty()) continue;
    for (const auto& in : inputs)
      if (out != "-" && same_file(in, out))
        throw harness::BadRequest(
            fmt::format("{}: is read, and would be written over; name another file", out));
    for (size_t j = 0; j < i; ++j)
      if (!outputs[j].empty() && same_file(outputs[j], out) &&
          !std::filesystem::is_character_file(out))
        throw harness::BadRequest(fmt::format("two reports go to {}; expected one each",
                                              out == "-" ? "standard output" : out));
  }
}

}  // namespace cli
