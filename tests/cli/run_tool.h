// SPDX-License-Identifier: Apache-2.0
// Runs one of the real programs as a child process and keeps what it says.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace test {

struct Ran {
  int code = -1;         // exit code; 128 + signal where a signal ended it
  std::string out, err;  // what it printed
  std::string all() const { return out + err; }
};

// "qsa-verify run expand": the first word is looked for in the build's bin folder; the rest goes to
// /bin/sh.
Ran run_tool(const std::string& command_line, const std::string& environment = "");

// A path in a fresh folder of this test, which is removed at exit.
std::string scratch(const std::string& name);
std::string read_file(const std::string& path);

// RFC 4180: rows of cells.
std::vector<std::vector<std::string>> parse_csv(const std::string& text);
// The column of that name of every row behind the header.
std::vector<std::string> column(const std::vector<std::vector<std::string>>& csv,
                                const std::string& name);

// `part` is in `text`; shows both where it is not.
testing::AssertionResult has(const std::string& text, const std::string& part);

// "--plugin FILE -d fake --impl NAME"
std::string fake(const std::string& implementation);

}  // namespace test
