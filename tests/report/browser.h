// SPDX-License-Identifier: Apache-2.0
// Headless Chromium, for pages on this disk.
#pragma once

#include <string>

namespace test {

bool has_browser();  // chromium, chromium-browser or google-chrome on PATH

// The page's elements after its script has run.
std::string dom_of(const std::string& html_file);

struct Picture {
  int width = 0, height = 0;
};
// Also written to `png`.
Picture screenshot(const std::string& html_file, const std::string& png, int width, int height,
                   bool dark);

}  // namespace test
