// SPDX-License-Identifier: Apache-2.0
#include "cli/outputs.h"

#include <fmt/format.h>

#include <filesystem>

#include "harness/plugins/errors.h"

namespace cli {

namespace {

namespace fs = std::filesystem;

bool same_place(const std::string& a, const std::string& b) {
  if (a == "-" || b == "-") return a == b;
  std::error_code error;
  if (fs::exists(a, error) && fs::exists(b, error)) return fs::equivalent(a, b, error);
  return fs::weakly_canonical(fs::absolute(a), error) ==
         fs::weakly_canonical(fs::absolute(b), error);
}

}  // namespace

void check_outputs(const std::vector<std::string>& outputs,
                   const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& output = outputs[i];
    if (output.empty()) continue;
    for (size_t j = 0; j < i; ++j)
      if (!outputs[j].empty() && same_place(outputs[j], output))
        throw harness::BadRequest(fmt::format("two reports go to {}; expected one each",
                                              output == "-" ? "standard output" : output));
    for (const std::string& input : inputs)
      // Standard input and output are often one terminal.
      if (std::error_code error; fs::is_regular_file(input, error) && same_place(input, output))
        throw harness::BadRequest(fmt::format(
            "{}: a report would overwrite a file that is read; name another file", output));
  }
}

}  // namespace cli
