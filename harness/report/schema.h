// SPDX-License-Identifier: Apache-2.0
// Rows of another version of the columns are refused before anybody reads a number in them.
#pragma once

#include "harness/report/table.h"

namespace harness {

// Throws BadRequest (file, line, expected and got) where a row's `schema` is not kSchema. A row
// without one is taken: files written by hand and by other tools have no such column.
void check_schema(const Table& table);

}  // namespace harness
