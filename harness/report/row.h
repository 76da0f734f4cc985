// SPDX-License-Identifier: Apache-2.0
// A row of a report: one (case, implementation, device, condition). Every row has every column, in
// this order; a cell that does not apply is empty. Units stand in the names.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace harness {

inline constexpr auto kColumns = std::to_array<std::string_view>({
    // identity
    "schema",
    "run_id",
    "tool",
    "git_sha",
    "utc",
    "op",
    "impl",
    "case_id",
    "shape",
    "preset",
    "seed",
    // machine
    "backend",
    "device",
    "arch",
    "driver",
    "toolkit",
    // condition
    "dtype",
    "fp8_flavour",
    "l2",
    "flush_bytes",
    "launch",
    // verdict
    "status",
    "reason",
    "findings",
    "err_max_abs",
    "err_rel_l2",
    "bound",
    "used_share",
    "mismatches",
    "nonfinite",
    "first_bad",
    "digest",
    // time
    "samples",
    "repeats",
    "time_us_min",
    "time_us_q1",
    "time_us_median",
    "time_us_q3",
    "median_lo_us",
    "median_hi_us",
    "noise_pct",
    "empty_us",
    "clock_mhz",
    "power_w",
    "temp_c",
    "throttled",
    // model
    "bytes",
    "flops",
    "intensity",
    "gbps",
    "gflops",
    "roof_gbps",
    "roof_gflops",
    "roof_source",
    "roof_pct",
    // trace
    "samples_file",
    "repro",
});
inline constexpr int kSchema = 1;

using Cell = std::variant<std::monostate, std::string, int64_t, double>;

class Row {
 public:
  // Throws std::logic_error for a name that is no column.
  void set(std::string_view column, Cell value);
  const Cell& at(std::string_view column) const;
  std::string text(std::string_view column) const;  // empty where the cell is
  const std::array<Cell, kColumns.size()>& cells() const { return cells_; }

 private:
  std::array<Cell, kColumns.size()> cells_;
};

// Shortest text that reads back as the same number, with a dot in every locale; inf and nan by
// name.
std::string to_text(const Cell& cell);

// RFC 4180: quoted where a comma, a quote, a line end or an outer blank makes it necessary. Line
// ends inside become blanks: one row is one line.
std::string csv_cell(std::string text);
std::string csv_header();
std::string csv_line(const Row& row);   // without the line end
std::string json_line(const Row& row);  // one object, all columns, null where empty or not finite

}  // namespace harness
