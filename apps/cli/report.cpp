// SPDX-License-Identifier: Apache-2.0
// `report` of the benches: rows of any number of runs as one HTML page or Markdown text.
#include <fmt/format.h>

#include <memory>

#include "cli/exit_code.h"
#include "cli/presets.h"
#include "cli/verbs.h"
#include "harness/plugins/errors.h"
#include "harness/report/output.h"
#include "harness/report/page.h"
#include "harness/report/read_rows.h"

namespace cli {

int report(const Tool&, const VerbName&, const Options& options) {
  if (options.html.empty() && options.markdown.empty())
    throw harness::BadRequest("nothing to write: expected --html FILE, --md FILE or both");
  harness::PageInput input;
  input.files = options.files;
  for (const auto& file : options.files)
    for (auto& row : harness::read_rows(file)) input.rows.push_back(std::move(row));
  input.datasheets = harness::read_datasheets(options.datasheets.empty()
                                                  ? (datasets_folder() / "devices.csv").string()
                                                  : options.datasheets);
  using harness::OutputFile;
  if (!options.html.empty())
    OutputFile(options.html, OutputFile::Mode::replace).write(harness::html_page(input));
  if (!options.markdown.empty())
    OutputFile(options.markdown, OutputFile::Mode::replace).write(harness::markdown_page(input));
  return input.rows.empty() ? kNothingJudged : kPass;
}

}  // namespace cli
