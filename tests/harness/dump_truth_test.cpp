// SPDX-License-Identifier: Apache-2.0
// Every file of tests/data/dumps against truth.json: values of the good ones, refusal of the
// hostile ones, and a "not yet" for the formats that are not read.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/dump.h"

namespace harness {
namespace {

const std::string kFolder = TOOLKIT_SOURCE_DIR "/tests/data/dumps/";

nlohmann::json truth() {
  std::ifstream in(kFolder + "truth.json");
  return nlohmann::json::parse(in);
}

std::string_view torch_name(tk_dtype d) {
  static const std::map<tk_dtype, std::string_view> names{{TK_F32, "float32"},
                                                          {TK_F64, "float64"},
                                                          {TK_F16, "float16"},
                                                          {TK_BF16, "bfloat16"},
                                                          {TK_I64, "int64"},
                                                          {TK_I32, "int32"},
                                                          {TK_I16, "int16"},
                                                          {TK_I8, "int8"},
                                                          {TK_U8, "uint8"},
                                                          {TK_BOOL, "bool"},
                                                          {TK_E4M3FN, "float8_e4m3fn"},
                                                          {TK_E5M2, "float8_e5m2"}};
  const auto it = names.find(d);
  return it == names.end() ? "?" : it->second;
}

bool not_read(const std::string& file) { return file.ends_with(".pt") || file.ends_with(".npz"); }

TEST(DumpTruth, CoversEveryFileOfTheFolder) {
  const auto all = truth();
  size_t files = 0;
  for (const auto& f : std::filesystem::directory_iterator(kFolder))
    if (f.path().filename() != "truth.json") {
      ++files;
      EXPECT_TRUE(all.contains(f.path().filename().string())) << f.path();
    }
  EXPECT_EQ(files, all.size());
  EXPECT_GE(files, 45u);
}

TEST(DumpTruth, GoodFilesHaveTheirValues) {
  int read = 0;
  const auto all = truth();
  for (const auto& [file, entry] : all.items()) {
    if (not_read(file) || !entry["verdict"].get<std::string>().starts_with("ok")) continue;
    ++read;
    const Dump d = Dump::open(kFolder + file);
    EXPECT_EQ(d.entries().size(), entry["tensors"].size()) << file;
    for (const auto& [name, tensor] : entry["tensors"].items()) {
      const Tensor t = d.tensor(name);
      EXPECT_EQ(torch_name(t.dtype), tensor["dtype"].get<std::string>()) << file << " " << name;
      EXPECT_EQ(t.shape, tensor["shape"].get<Shape>()) << file << " " << name;
      const auto values = tensor["values"].get<std::vector<double>>();
      ASSERT_EQ(t.count(), int64_t(values.size())) << file << " " << name;
      for (int64_t i = 0; i < t.count(); ++i)
        EXPECT_EQ(t.real(i), values[size_t(i)]) << file << " " << name << " " << i;
    }
  }
  EXPECT_EQ(read, 11);
}

TEST(DumpTruth, HostileFilesAreRefusedForTheirReason) {
  int refused = 0;
  const auto all = truth();
  for (const auto& [file, entry] : all.items()) {
    const std::string verdict = entry["verdict"];
    if (not_read(file) || !verdict.starts_with("refused")) continue;
    ++refused;
    std::string text = "accepted";
    try {
      const Dump d = Dump::open(kFolder + file);
      for (const DumpEntry& e : d.entries()) d.tensor(e.name);
    } catch (const BadFile& e) {
      text = e.what();
      EXPECT_FALSE(e.expected.empty() || e.got.empty() || e.about.empty()) << file;
    }
    EXPECT_NE(text, "accepted") << file;
    for (const char* word : {"overlap", "gap", "duplicate key", "bytes after the last tensor"})
      if (verdict.find(word) != std::string::npos)
        EXPECT_NE(text.find(word), std::string::npos) << file << ": " << text;
  }
  EXPECT_EQ(refused, 15);
}

TEST(DumpTruth, FormatsThatAreNotReadSayNotYet) {
  const auto all = truth();
  for (const auto& [file, entry] : all.items()) {
    if (!not_read(file)) continue;
    try {
      Dump::open(kFolder + file);
      ADD_FAILURE() << file;
    } catch (const BadFile& e) {
      EXPECT_NE(std::string(e.what()).find("not yet"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace harness
