// SPDX-License-Identifier: Apache-2.0
// A file that cannot be used: which one, what about it, what was expected, what came, what to do next.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace harness {

class BadFile : public std::runtime_error {
 public:
  BadFile(std::string file, std::string what, std::string expected, std::string got, std::string next = "")
      : std::runtime_error(file + ": " + what + ": expected " + expected + ", got " + got +
                           (next.empty() ? "" : "; " + next)),
        file(std::move(file)),
        about(std::move(what)),
        expected(std::move(expected)),
        got(std::move(got)),
        next(std::move(next)) {}
  std::string file, about, expected, got, next;
};

}  // namespace harness
