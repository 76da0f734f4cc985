// SPDX-License-Identifier: Apache-2.0
// A file that cannot be used: which one, what about it, what was expected, what came, what to do next.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace harness {

// A file may put anything into a name: control characters are shown, not sent to a terminal.
inline std::string printable(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f)
      out += c;
    else
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

class BadFile : public std::runtime_error {
 public:
  BadFile(std::string file, std::string what, std::string expected, std::string got, std::string next = "")
      : std::runtime_error(printable(file + ": " + what + ": expected " + expected + ", got " + got +
                                     (next.empty() ? "" : "; " + next))),
        file(std::move(file)),
        about(std::move(what)),
        expected(std::move(expected)),
        got(std::move(got)),
        next(std::move(next)) {}
  std::string file, about, expected, got, next;
};

}  // namespace harness
