// SPDX-License-Identifier: Apache-2.0
// qsa-bench: how fast are the QSA kernels? Verifies before it times, and the timed output after.
#include "cli/tool.h"

int main(int argc, char** argv) {
  const cli::Tool tool{
      "qsa-bench",
      "times the QSA kernels; every case is verified before and after",
      {"qsa"},
      {{"run", cli::Verb::bench, "verify, then time"},
       {"roofs", cli::Verb::roofs,
        "measure what the device can do: memory, L2, matrix instructions, launches"},
       {"compare", cli::Verb::compare, "two result files: what is slower, and is that sure?"},
       {"report", cli::Verb::report, "rows of any runs as one HTML page or Markdown text"},
       {"env", cli::Verb::env,
        "what this machine is, which backends are here, and why others are not"},
       {"list", cli::Verb::list, "ops, axes, suites and presets; or what is in a dump"}},
      {"qsa-bench run                           # every op on the first GPU; without one only the "
       "oracle is timed",
       "qsa-bench run attend --l2 both --launch graph --csv rows.csv",
       "qsa-bench run score --load dump.safetensors -d cuda:0"}};
  return cli::tool_main(tool, argc, argv);
}
