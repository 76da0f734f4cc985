// SPDX-License-Identifier: Apache-2.0
// Rows that are already there: of an earlier run (--resume), or of this case's earlier children
// (--isolate).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "harness/report/row.h"

namespace cli {

// What makes two rows the same measurement: tool, op, implementation, case, seed, device and its
// driver, condition and the command that repeats it (wave, order, plugin and planted fault stand
// there).
std::string row_key(const harness::Row& row);
bool key_is_of(const std::string& key, const std::string& case_id);

// The rows of a CSV file by their keys; none where there is no such file. Throws BadRequest where
// it is no table of rows, or a row of this tool in another revision: one file must not hold the
// times of two binaries as if they were one run.
std::map<std::string, harness::Row> read_earlier_rows(const std::string& csv, std::string_view tool,
                                                      std::string_view git_sha);

// "did not end within 2 s (--timeout)": why a row is a timeout.
std::string too_slow(double timeout_s);
// The row is a timeout or was too large for the device, and this command names a limit that is wider
// than the one which it met. Without that a resumed sweep passes over it, or it would hang there again.
bool worth_another_try(const harness::Row& earlier, const Options& now);
// `row` is of the very case that `earlier` gave up, however far that had come in it.
bool is_another_try(const harness::Row& earlier, const harness::Row& row);

}  // namespace cli
