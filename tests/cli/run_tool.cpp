// SPDX-License-Identifier: Apache-2.0
#include "run_tool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace test {

namespace {

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cli-test-XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

std::string scratch(const std::string& name) {
  static const Folder folder;
  return (folder.path / name).string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Ran run_tool(const std::string& command_line, const std::string& environment) {
  const std::string out = scratch("stdout"), err = scratch("stderr");
  const std::string command =
      environment + " " TOOLKIT_BIN_DIR "/" + command_line + " >" + out + " 2>" + err;
  const int status = std::system(command.c_str());
  Ran ran;
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ran.out = read_file(out);
  ran.err = read_file(err);
  return ran;
}

std::vector<std::vector<std::string>> parse_csv(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row(1);
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      row.back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      row.emplace_back();
    } else if (c == '\n' && !quoted) {
      rows.push_back(std::move(row));
      row.assign(1, "");
    } else {
      row.back() += c;
    }
  }
  return rows;
}

std::vector<std::string> column(const std::vector<std::vector<std::string>>& csv,
                                const std::string& name) {
  const auto at = std::find(csv.at(0).begin(), csv.at(0).end(), name) - csv.at(0).begin();
  if (at == static_cast<std::ptrdiff_t>(csv.at(0).size()))
    throw std::out_of_range("no column " + name);
  std::vector<std::string> cells;
  for (size_t i = 1; i < csv.size(); ++i) cells.push_back(csv[i].at(at));
  return cells;
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected '" << part << "' in:\n" << text;
}

std::string fake(const std::string& implementation) {
  return "--plugin " TOOLKIT_FAKE_PLUGIN " -d fake --impl " + implementation;
}

}  // namespace test
