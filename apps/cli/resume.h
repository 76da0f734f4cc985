// SPDX-License-Identifier: Apache-2.0
// Rows that are already there: of an earlier run (--resume), or of this case's earlier children
// (--isolate).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "harness/judge/verdict.h"
#include "harness/report/row.h"

namespace cli {

// What makes two rows the same measurement: tool, op, implementation, case, seed, device and its
// driver, condition and the command that repeats it (wave, order, plugin and planted fault stand
// there).
std::string row_key(const harness::Row& row);
bool key_is_of(const std::string& key, const std::string& case_id);
harness::Status status_from(const std::string& word);  // throws BadRequest

// The rows of a CSV file by their keys; none where there is no such file. Throws BadRequest where
// it is no table of rows, or a row of this tool in another revision: one file must not hold the
// times of two binaries as if they were one run.
std::map<std::string, harness::Row> read_earlier_rows(const std::string& csv, std::string_view tool,
                                                      std::string_view git_sha);

}  // namespace cli
