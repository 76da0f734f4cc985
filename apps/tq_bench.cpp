// SPDX-License-Identifier: Apache-2.0
// tq-bench: the TurboQuant kernels, right and fast.
#include "cli/tool.h"

int main(int argc, char** argv) {
  const cli::Tool tool{
      "tq-bench",
      "verifies and times the TurboQuant kernels",
      {"tq"},
      {{"run", cli::Verb::bench, "verify, then time"},
       {"verify", cli::Verb::verify,
        "generate cases, run the kernels on a device, judge every output"},
       {"replay", cli::Verb::replay,
        "judge dumped tensors: results in the file, or a kernel run on its inputs"},
       {"roofs", cli::Verb::roofs,
        "measure what the device can do: memory, L2, matrix instructions, launches"},
       {"compare", cli::Verb::compare, "two result files: what is slower, and is that sure?"},
       {"report", cli::Verb::report, "rows of any runs as one HTML page or Markdown text"},
       {"env", cli::Verb::env,
        "what this machine is, which backends are here, and why others are not"},
       {"list", cli::Verb::list, "ops, axes, suites, faults and presets; or what is in a dump"}},
      {"tq-bench run                            # every op on the first GPU; without one only the "
       "oracle is timed",
       "tq-bench verify decode merge --csv rows.csv", "tq-bench replay cache.safetensors -d simt"}};
  return cli::tool_main(tool, argc, argv);
}
