// SPDX-License-Identifier: Apache-2.0
// Small files for tests of the readers, in a folder that goes away again.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/dump.h"

namespace harness {

class Files : public ::testing::Test {
 protected:
  Files() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("harness-" + std::string(info->test_suite_name()) + "-" + info->name());
    std::filesystem::create_directories(folder_);
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string path(const std::string& name) const { return folder_ / name; }

  std::filesystem::path folder_;
};

inline std::string little_endian(uint64_t v, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += char(v >> (8 * i));
  return s;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data = "") {
  return little_endian(header.size(), 8) + header + data;
}

// Why a file is refused; "accepted" where it is not.
inline std::string refusal(const std::string& path) {
  try {
    const Dump d = Dump::open(path);
    for (const DumpEntry& e : d.entries()) d.tensor(e.name);
  } catch (const BadFile& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with(path)) << e.what();
    return e.about + ": expected " + e.expected + ", got " + e.got;
  }
  return "accepted";
}

}  // namespace harness
