// SPDX-License-Identifier: Apache-2.0
// qsa-verify: are the kernels right? Both families.
#include "cli/tool.h"

int main(int argc, char** argv) {
  const cli::Tool tool{
      "qsa-verify",
      "judges kernels and dumped results against float64 oracles",
      {"qsa", "tq"},
      {{"run", cli::Verb::verify,
        "generate cases, run the kernels on a device, judge every output"},
       {"replay", cli::Verb::replay,
        "judge dumped tensors: results in the file, or a kernel run on its inputs"},
       {"list", cli::Verb::list, "ops, axes, suites, faults and presets; or what is in a dump"}},
      {"qsa-verify run                          # every op, default suite, first GPU or else simt",
       "qsa-verify run attend -d simt --wave 64 -a rows=1,7 --csv rows.csv",
       "qsa-verify replay dump.safetensors      # a result under suspicion, or a call to run"}};
  return cli::tool_main(tool, argc, argv);
}
