// SPDX-License-Identifier: Apache-2.0
// The three programs differ in their name, the families that they know and their verbs; all else is
// shared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cli {

enum class Verb { verify, replay, list, bench, roofs, compare, env, report };

struct VerbName {
  std::string_view word;  // "run"
  Verb verb;
  std::string_view what;  // one line of the help
};

struct Tool {
  std::string_view name;                   // "qsa-verify"
  std::string_view what;                   // one line
  std::vector<std::string_view> families;  // "qsa", "tq"
  std::vector<VerbName> verbs;
  std::vector<std::string_view> examples;  // three command lines, each with a comment
};

// The program: reads the command line, does it, returns the exit code.
int tool_main(const Tool& tool, int argc, char** argv);

}  // namespace cli
