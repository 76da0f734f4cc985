// SPDX-License-Identifier: Apache-2.0
// Reads a CSV file (RFC 4180: quoted fields, which may hold line ends; LF or CRLF) by the names of
// its columns. Every CSV file that the tools read comes through here. (libfccp, which served before
// beside a reader of our own, wants the number of columns at compile time and refuses a quoted field
// that holds a line end, which a spreadsheet may write.)
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace harness {

struct Record {
  int line = 0;                                           // its first in the file; the header is 1
  std::map<std::string, std::string, std::less<>> cells;  // only those that are not empty
  std::string text(std::string_view column) const;        // empty where the cell is
};

struct Table {
  std::string file;
  std::vector<std::string> header;
  std::vector<Record> records;
  // Nothing where the cell is empty. Throws BadRequest with file, line and column where it is no
  // number; the point is a dot in every locale.
  std::optional<double> number(const Record& record, std::string_view column) const;
};

// Columns in any order, also others than the required ones. Throws BadRequest: the file cannot be
// read or ends inside a quoted field, a required column is missing, a record has too few or too
// many cells. A line that is the header once more is passed over.
Table read_table(const std::string& file, const std::vector<std::string>& required);

// The number that the whole text is; none where it is something else. Inf and nan are numbers here.
std::optional<double> number_from(std::string_view text);

}  // namespace harness
