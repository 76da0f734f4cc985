// SPDX-License-Identifier: Apache-2.0
// `report` of the benches: rows of any number of runs as one HTML page or Markdown text.
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/presets.h"
#include "cli/verbs.h"
#include "harness/compare/peers.h"
#include "harness/compare/targets.h"
#include "harness/plugins/errors.h"
#include "harness/report/output.h"
#include "harness/report/page.h"
#include "harness/report/read_rows.h"

namespace cli {

namespace {

void add_peers(const Tool& tool, const std::string& file, harness::PageInput& input) {
  std::set<std::string> devices;
  for (const auto& row : input.rows)
    if (!row.text("time_us_median").empty()) devices.insert(row.text("device"));
  if (devices.size() > 1)
    throw harness::BadRequest(
        fmt::format("--peer: its times are of one device, but the rows are of {}",
                    fmt::join(devices, " and ")));
  const harness::Peers peers((datasets_folder() / "peers" / "triton.csv").string(), file);
  for (const auto& shape : peers.unknown())
    fmt::print(stderr, "{}: {}: no case of ours is '{}'\n", tool.name, file, shape);
  input.files.push_back(file);
  input.peers = peer_rows(
      peers, input.rows,
      fmt::format("peer {}, not judged", std::filesystem::path(file).filename().string()));
}

}  // namespace

int report(const Tool& tool, const VerbName&, const Options& options) {
  if (options.html.empty() && options.markdown.empty())
    throw harness::BadRequest("nothing to write: expected --html FILE, --md FILE or both");
  std::vector<std::string> inputs = options.files;
  inputs.insert(inputs.end(), {options.peer, options.datasheets, options.targets});
  std::erase(inputs, "");
  check_outputs(inputs, {options.html, options.markdown});
  for (size_t i = 0; i < options.files.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (same_file(options.files[i], options.files[j]))
        throw harness::BadRequest(
            fmt::format("{}: given twice; its cases would count twice", options.files[i]));
  harness::PageInput input;
  input.files = options.files;
  for (const auto& file : options.files)
    for (auto& row : harness::read_rows(file)) input.rows.push_back(std::move(row));
  input.datasheets = harness::read_datasheets(options.datasheets.empty()
                                                  ? (datasets_folder() / "devices.csv").string()
                                                  : options.datasheets);
  if (!options.peer.empty()) add_peers(tool, options.peer, input);
  if (!options.targets.empty())
    input.targets = hold_to_targets(harness::read_targets(options.targets), input.rows, input.peers);
  using harness::OutputFile;
  if (!options.html.empty())
    OutputFile(options.html, OutputFile::Mode::replace).write(harness::html_page(input));
  if (!options.markdown.empty())
    OutputFile(options.markdown, OutputFile::Mode::replace).write(harness::markdown_page(input));
  return input.rows.empty() ? kNothingJudged : kPass;
}

}  // namespace cli
