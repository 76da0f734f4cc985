// SPDX-License-Identifier: Apache-2.0
#include "browser.h"

#include <cstdlib>
#include <filesystem>

#include "run_tool.h"

namespace test {

namespace {

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (std::system(("command -v " + std::string(name) + " >/dev/null 2>&1").c_str()) == 0)
      return name;
  return {};
}

std::string ask(const std::string& flags, const std::string& html_file) {
  const std::string out = scratch("browser.out"), profile = scratch("profile");
  const std::string command = browser() +
                              " --headless --no-sandbox --disable-gpu --hide-scrollbars "
                              "--user-data-dir=" +
                              profile + " " + flags + " file://" + html_file + " >" + out +
                              " 2>/dev/null";
  if (std::system(command.c_str()) != 0) return {};
  return read_file(out);
}

int big_endian(const std::string& bytes, size_t at) {
  int value = 0;
  for (size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes.at(i));
  return value;
}

}  // namespace

bool has_browser() { return !browser().empty(); }

std::string dom_of(const std::string& html_file) { return ask("--dump-dom", html_file); }

Picture screenshot(const std::string& html_file, const std::string& png, int width, int height,
                   bool dark) {
  ask("--blink-settings=preferredColorScheme=" + std::string(dark ? "0" : "1") + " --window-size=" +
          std::to_string(width) + "," + std::to_string(height) + " --screenshot=" + png,
      html_file);
  const std::string bytes = std::filesystem::exists(png) ? read_file(png) : "";
  if (bytes.size() < 24) return {};
  return {big_endian(bytes, 16), big_endian(bytes, 20)};
}

}  // namespace test
