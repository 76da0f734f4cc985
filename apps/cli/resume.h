// SPDX-License-Identifier: Apache-2.0
// Rows that are already there: of an earlier run (--resume), or of this case's earlier children
// (--isolate).
#pragma once

#include <map>
#include <string>

#include "harness/judge/verdict.h"
#include "harness/report/row.h"

namespace cli {

// What makes two rows the same measurement: tool, op, implementation, case, seed, device, condition
// and the command that repeats it (wave, order, plugin and planted fault stand there).
std::string row_key(const harness::Row& row);
bool key_is_of(const std::string& key, const std::string& case_id);
harness::Status status_from(const std::string& word);  // throws BadRequest

// Status by key of the rows of a CSV file; none where there is no such file. Throws BadRequest
// where it has other columns.
std::map<std::string, std::string> read_rows(const std::string& csv);

}  // namespace cli
