// SPDX-License-Identifier: Apache-2.0
// Reads chosen columns of a CSV file (RFC 4180, one record a line) as text, whatever their order
// and whatever other columns there are.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace harness {

struct Record {
  int line = 0;                                       // in the file, the header is 1
  std::map<std::string, std::string> cells;           // only those that are not empty
  std::string text(const std::string& column) const;  // empty where the cell is
};

struct Table {
  std::string file;
  std::vector<Record> records;
  // Nothing where the cell is empty. Throws BadRequest with file, line and column where it is no
  // number; the point is a dot in every locale.
  std::optional<double> number(const Record& record, const std::string& column) const;
};

// Throws BadRequest: the file cannot be read, a required column is missing, a line has too few or
// too many cells.
Table read_table(const std::string& file, const std::vector<std::string>& required,
                 const std::vector<std::string>& optional = {});

}  // namespace harness
