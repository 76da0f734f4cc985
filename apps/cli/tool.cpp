// SPDX-License-Identifier: Apache-2.0
#include "cli/tool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "harness/dumps/bad_file.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"
#include "toolkit/contract.h"

namespace cli {

namespace {

std::string help(const Tool& tool) {
  std::string text = fmt::format("{} {} ({}): {}\n\nUsage: {} VERB ...\n", tool.name, version(),
                                 git_sha(), tool.what, tool.name);
  for (const auto& verb : tool.verbs) text += fmt::format("  {:<8}{}\n", verb.word, verb.what);
  text += "\nExamples:\n";
  for (const auto example : tool.examples) text += fmt::format("  {}\n", example);
  return text + fmt::format("\nFlags of a verb: {} VERB --help\n", tool.name);
}

int run_verb(const Tool& tool, const VerbName& verb, const std::vector<std::string>& words) {
  Options options;
  if (!parse_options(tool, verb, words, options)) return kPass;
  switch (verb.verb) {
    case Verb::verify:
      return verify(tool, verb, options);
    case Verb::replay:
      return replay(tool, verb, options);
    case Verb::list:
      return list(tool, verb, options);
    case Verb::bench:
      return bench(tool, verb, options);
    case Verb::roofs:
      return roofs(tool, verb, options);
    case Verb::compare:
      return compare(tool, verb, options);
    case Verb::env:
      return env(tool, verb, options);
    case Verb::report:
      return report(tool, verb, options);
  }
  return kUsage;
}

int dispatch(const Tool& tool, const std::vector<std::string>& words) {
  if (words.empty()) {
    fmt::print(stderr, "{}", help(tool));
    return kUsage;  // nothing ran, and that is never 0
  }
  if (words[0] == "-h" || words[0] == "--help" || words[0] == "help") {
    fmt::print("{}", help(tool));
    return kPass;
  }
  if (words[0] == "--version") {
    fmt::print("{} {} ({}), plugin ABI {}\n", tool.name, version(), git_sha(), TK_ABI_VERSION);
    return kPass;
  }
  std::vector<std::string> names;
  for (const auto& verb : tool.verbs) {
    if (verb.word == words[0]) return run_verb(tool, verb, {words.begin() + 1, words.end()});
    names.emplace_back(verb.word);
  }
  throw harness::BadRequest(fmt::format("unknown verb '{}'{}; expected {}", words[0],
                                        harness::nearest_hint(words[0], names),
                                        fmt::join(names, ", ")));
}

}  // namespace

int tool_main(const Tool& tool, int argc, char** argv) {
  // Started with a closed stream (>&-), a report or a dump would get that stream's number.
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO || fd < 0) {
      ::close(fd);
      break;
    }
  }
  const auto fail = [&](int code, const char* what) {
    // Not fmt::print, which throws where the stream is full.
    std::fputs(fmt::format("{}: {}\n", tool.name, what).c_str(), stderr);
    return code;
  };
  try {
    return dispatch(tool, {argv + 1, argv + argc});
  } catch (const harness::BadRequest& e) {
    return fail(kUsage, e.what());
  } catch (const harness::BadFile& e) {
    return fail(kUsage, e.what());
  } catch (const harness::Absent& e) {
    return fail(kNothingJudged, e.what());
  } catch (const std::exception& e) {
    return fail(kDevice, e.what());
  }
}

}  // namespace cli
