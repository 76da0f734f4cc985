// SPDX-License-Identifier: Apache-2.0
#include "harness/report/markdown_text.h"

namespace harness::markdown {

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '\n' || c == '\r')
      out += ' ';
    else if (std::string_view("|\\`*_[]").find(c) != std::string_view::npos)
      (out += '\\') += c;
    else
      out += c;
  }
  return out;
}

std::string code(std::string_view text, bool in_table) {
  std::string inside, fence = "`";
  for (const char c : text) {
    if (c == '|' && in_table) inside += '\\';
    inside += c == '\n' || c == '\r' ? ' ' : c;
  }
  while (inside.find(fence) != std::string::npos) fence += '`';
  const std::string space = fence.size() > 1 ? " " : "";
  return fence + space + inside + space + fence;
}

}  // namespace harness::markdown
