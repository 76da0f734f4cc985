// SPDX-License-Identifier: Apache-2.0
// What a flag's value has to be, checked before it is used: a wrong one is told from a right one where CLI11 alone takes both.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>

#include "harness/report/table.h"

namespace cli {

// CLI11 itself takes -1, 2^64 and an empty word for an unsigned number.
inline const CLI::Validator kSeed(
    [](std::string& text) {
      uint64_t v = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
      return error == std::errc{} && end == text.data() + text.size()
                 ? ""
                 : fmt::format("expected an integer from 0 to 2^64 - 1, got '{}'", text);
    },
    "");
// CLI11's own ranges take NaN, which then switches off whatever it is compared with, and write a
// limit of theirs in 300 digits.
inline CLI::Validator number_between(double least, double most, const std::string& expected) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = harness::number_from(text);
        return value && *value >= least && *value <= most
                   ? ""
                   : fmt::format("expected {}, got '{}'", expected, text);
      },
      "");
}

// The clocks count nanoseconds in 63 bits: 9.2e9 s.
inline const CLI::Validator kSeconds = number_between(0, 1e9, "seconds, 0 to 1e9");
inline const CLI::Validator kSomeSeconds = number_between(1e-9, 1e9, "seconds, 1e-9 to 1e9");
inline const CLI::Validator kPercent = number_between(0, 1e6, "percent, 0 to 1e6");
inline const CLI::Validator kShare = number_between(0, 1, "a share, 0 to 1");

// Of a report: an empty variable of a script would be no report at all.
inline const CLI::Validator kPath(
    [](std::string& path) { return path.empty() ? "expected a file, or - for standard output" : ""; },
    "");

}  // namespace cli
