// SPDX-License-Identifier: Apache-2.0
// A report over the rows of any number of runs and devices: one HTML page that needs nothing else
// (no network, no script for its content), and the same as Markdown.
#pragma once

#include <string>
#include <vector>

#include "harness/compare/targets.h"
#include "harness/report/roofline.h"
#include "harness/report/row.h"

namespace harness {

struct PageInput {
  std::vector<std::string> files;  // where the rows are from, as given
  std::vector<Row> rows;
  std::vector<Row> peers;  // times of a peer's kernels (peer_rows): side by side, in no verdict
  std::vector<Datasheet> datasheets;
  std::vector<TargetResult> targets;  // of --targets
};

std::string html_page(const PageInput& input);
std::string markdown_page(const PageInput& input);

}  // namespace harness
