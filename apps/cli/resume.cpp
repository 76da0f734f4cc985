// SPDX-License-Identifier: Apache-2.0
#include "cli/resume.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/plan.h"
#include "harness/plugins/errors.h"
#include "harness/report/read_rows.h"

namespace cli {

namespace {

constexpr auto kKey =
    std::to_array<std::string_view>({"case_id", "tool", "op", "impl", "seed", "device", "driver",
                                     "toolkit", "l2", "launch", "repro"});

constexpr std::string_view kLimit = "did not end within ", kShare = ", of which ";

// The number behind `words` in a reason; none where it does not hold them.
std::optional<double> number_behind(std::string_view words, const std::string& reason) {
  const size_t at = reason.find(words);
  double value = 0;
  if (at == std::string::npos ||
      std::from_chars(reason.data() + at + words.size(), reason.data() + reason.size(), value).ec !=
          std::errc{})
    return {};
  return value;
}

}  // namespace

std::string row_key(const harness::Row& row) {
  std::string key;
  for (const auto column : kKey) key += harness::csv_cell(row.text(column)) + ",";
  return key;
}

bool key_is_of(const std::string& key, const std::string& case_id) {
  return key.starts_with(harness::csv_cell(case_id) + ",");
}

std::map<std::string, harness::Row> read_earlier_rows(const std::string& csv, std::string_view tool,
                                                      std::string_view git_sha) {
  std::map<std::string, harness::Row> rows;
  if (std::error_code error;
      !std::filesystem::exists(csv, error) || std::filesystem::is_empty(csv, error))
    return rows;
  for (auto& row : harness::read_rows(csv)) {
    if (row.text("tool") == tool && row.text("git_sha") != git_sha)
      throw harness::BadRequest(fmt::format(
          "{}: holds rows of {} {}, and this is {}: --resume goes on with the rows of one binary; "
          "name another file",
          csv, tool, row.text("git_sha"), git_sha));
    rows[row_key(row)] = std::move(row);
  }
  return rows;
}

std::string too_slow(double timeout_s) {
  return fmt::format("{}{} s (--timeout)", kLimit, timeout_s);
}

bool worth_another_try(const harness::Row& earlier, const Options& now) {
  const std::string status = earlier.text("status"), reason = earlier.text("reason");
  if (status == "timeout") {
    const auto limit = number_behind(kLimit, reason);
    return limit && now.timeout_given && (now.timeout_s == 0 || now.timeout_s > *limit);
  }
  if (status != "skip") return false;
  const auto share = number_behind(kShare, reason);  // percent, of three digits
  return share && now.mem_fraction_given && 100 * now.mem_fraction > *share * 1.006;
}

bool is_another_try(const harness::Row& earlier, const harness::Row& row) {
  for (const auto column : kKey) {
    const std::string old = earlier.text(column), now = row.text(column);
    if (old == now) continue;
    // Given up before it had an implementation or a condition.
    if (old.empty() && (column == "impl" || column == "l2" || column == "launch")) continue;
    if (column != "repro" || !earlier.text("impl").empty()) return false;
    std::string without = now;
    const std::string flag = " --impl " + shell_word(row.text("impl"));
    if (const size_t at = without.find(flag); at != std::string::npos) without.erase(at, flag.size());
    if (old != without) return false;
  }
  return true;
}

}  // namespace cli
