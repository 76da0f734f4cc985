// SPDX-License-Identifier: Apache-2.0
// A comparison as lines for a terminal, as CSV, as Markdown and as JUnit.
#pragma once

#include <string>
#include <vector>

#include "harness/compare/comparison.h"
#include "harness/report/row.h"

namespace harness {

// "1 case", "2 cases"
std::string counted(size_t n, const std::string& noun);
// "A base.csv: NVIDIA H200, driver 580.159, revision e3b9ce822c35, 140 rows"
std::string headline(const std::string& side, const Results& results);
// One line a pair, then what could not be paired.
std::string comparison_lines(const Comparison& comparison);
// "SLOWER 1, UNCLEAR 0, FASTER 0, SAME 139, 8 roofs not judged; 2 only in A, 1 only in B, 3 not
// compared"
std::string comparison_counts(const Comparison& comparison);
std::string comparison_csv(const Comparison& comparison);
// `heads` are headlines, `verdict` the last line.
std::string comparison_markdown(const Comparison& comparison, const std::vector<std::string>& heads,
                                const std::string& verdict);
// Rows for junit_document(): a regression is a failure, UNCLEAR is inconclusive, a roof and a case
// without a counterpart are skipped.
std::vector<Row> comparison_rows(const Comparison& comparison);

}  // namespace harness
