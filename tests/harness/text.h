// SPDX-License-Identifier: Apache-2.0
// Messages are tested by the words that matter.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace harness {

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos)
    return ::testing::AssertionSuccess() << "'" << text << "' has '" << part << "'";
  return ::testing::AssertionFailure() << "'" << text << "' lacks '" << part << "'";
}

}  // namespace harness
