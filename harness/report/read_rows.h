// SPDX-License-Identifier: Apache-2.0
// Rows that a run has written, read back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/verdict.h"
#include "harness/report/row.h"

namespace harness {

// Unknown columns are left out and missing ones are empty. Throws BadRequest (file and line) where
// the columns op, case_id or status are missing, a status is none, or a time, an amount or a rate is
// no number from 0 on; and what read_table and check_schema throw.
std::vector<Row> read_rows(const std::string& path);

// Nothing where the word is no status.
std::optional<Status> status_from(std::string_view word);

// The number in a cell; none where the cell is empty or holds something else, inf and nan included.
std::optional<double> number_in(const Row& row, std::string_view column);

}  // namespace harness
