// SPDX-License-Identifier: Apache-2.0
// Result files for the tests of comparing, written by the same code as real ones.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "cli/run_tool.h"
#include "harness/measure/statistics.h"
#include "harness/report/row.h"

namespace test {

// A row that passed: a median, the middle half `spread_pct` wide around it, and the interval of the
// median a fifth of that.
inline harness::Row timed(const std::string& name, double median_us, double spread_pct,
                          int samples = 100) {
  harness::Row row;
  const double half = median_us * spread_pct / 200;
  row.set("op", std::string("qsa.attend"));
  row.set("impl", std::string("portable"));
  row.set("case_id", "qsa.attend/" + name);
  row.set("device", std::string("NVIDIA H200"));
  row.set("dtype", std::string("bf16"));
  row.set("l2", std::string("cold"));
  row.set("launch", std::string("graph"));
  row.set("status", std::string("pass"));
  row.set("samples", int64_t{samples});
  row.set("repeats", int64_t{1});
  row.set("time_us_min", median_us - 3 * half);
  row.set("time_us_q1", median_us - half);
  row.set("time_us_median", median_us);
  row.set("time_us_q3", median_us + half);
  row.set("median_lo_us", median_us - half / 5);
  row.set("median_hi_us", median_us + half / 5);
  return row;
}

inline harness::Row with(harness::Row row, const std::string& column, harness::Cell value) {
  row.set(column, std::move(value));
  return row;
}

// The path of a fresh file of these rows.
inline std::string file_of(const std::string& name, const std::vector<harness::Row>& rows) {
  const std::string path = scratch(name);
  std::ofstream file(path);
  file << harness::csv_header() << "\n";
  for (const auto& row : rows) file << harness::csv_line(row) << "\n";
  return path;
}

}  // namespace test
