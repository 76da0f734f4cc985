// SPDX-License-Identifier: Apache-2.0
// Dumps through the real program.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "run_tool.h"

using test::run_tool;

namespace {

const std::string kGolden = TOOLKIT_SOURCE_DIR "/datasets/golden/";
const std::string kData = TOOLKIT_SOURCE_DIR "/tests/data/";

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() != ".csv" && entry.path().extension() != ".json")
      files.push_back(entry.path());
  return files;
}

TEST(Replay, InputsAreRunAndTheTruthThatCameAlongIsCompared) {
  const auto ran = run_tool("qsa-verify replay " + kGolden + "qsa.expand/*.safetensors -d simt");
  EXPECT_EQ(ran.code, 0) << ran.all();
}

TEST(Replay, ResultInTheFileIsJudgedWithoutAnyDevice) {
  const auto ran = run_tool("qsa-verify replay -d hip:0 " + kData +
                            "candidates/qsa.expand.decode.right.safetensors");
  EXPECT_EQ(ran.code, 0) << ran.all();
}

TEST(Replay, WrongResultIs1AndNamesOpTensorAndElement) {
  const auto ran = run_tool("qsa-verify replay " + kData +
                            "candidates/qsa.expand.ratio-8.token-off-by-one.safetensors");
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "indices: row "));
  EXPECT_TRUE(test::has(ran.out, "repro: qsa-verify replay "));
}

TEST(Replay, FileWithoutAKernelHereIs77) {
  const auto ran = run_tool("qsa-verify replay -v -d hip:0 " + kGolden + "qsa.merge/*.safetensors");
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "hip is absent"));
}

TEST(Replay, BadFileIs2AndTheOthersGoOn) {
  const auto ran = run_tool("qsa-verify replay " + kData + "dumps/gap.safetensors " + kData +
                            "candidates/qsa.expand.decode.right.safetensors");
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(test::has(ran.err, "gap.safetensors: "));
  EXPECT_TRUE(test::has(ran.out, "BAD INPUT 1 of 2"));
}

TEST(Replay, EveryHostileDumpIsRefusedByNameWithExit2) {
  const auto truth = nlohmann::json::parse(std::ifstream(kData + "dumps/truth.json"));
  int refused = 0;
  for (const auto& file : files_in(kData + "dumps")) {
    const std::string name = std::filesystem::path(file).filename();
    const bool hostile = truth.at(name).at("verdict").get<std::string>().starts_with("refused") ||
                         name.ends_with(".pt") || name.ends_with(".npz");  // not yet
    for (const std::string verb : {"replay", "list"}) {
      const auto ran = run_tool("qsa-verify " + verb + " " + file);
      // A good file of tensors that are no call is no case either: replay says what is missing.
      const int expected = hostile || verb == "replay" ? 2 : 0;
      EXPECT_EQ(ran.code, expected) << verb << " " << name << "\n" << ran.all();
      if (expected == 2) {
        EXPECT_TRUE(test::has(ran.err, name));
      }
    }
    refused += hostile;
  }
  EXPECT_GT(refused, 30);
}

TEST(Replay, WhatTheFileDoesNotSayComesByFlags) {
  const std::string file = kData + "candidates/qsa.expand.decode.right.safetensors";
  const auto wrong = run_tool("qsa-verify replay --set compress_ratio=3 " + file);
  EXPECT_EQ(wrong.code, 2) << wrong.all();
  EXPECT_TRUE(test::has(wrong.err, "expected"));
  EXPECT_EQ(run_tool("qsa-verify replay --set compress_ratoi=4 " + file).code, 2);
  EXPECT_EQ(run_tool("qsa-verify replay --set compress_ratio " + file).code, 2);
  EXPECT_EQ(run_tool("qsa-verify replay --op qsa.attend " + file).code, 2);
  EXPECT_EQ(run_tool("qsa-verify replay --map block_indices=nothing " + file).code, 2);
}

TEST(Replay, PlantedFaultIsNoticedInADumpToo) {
  const std::string file = kData + "candidates/qsa.expand.decode.right.safetensors";
  EXPECT_EQ(run_tool("qsa-verify replay --plant last-token-lost " + file).code, 1);
  EXPECT_EQ(run_tool("qsa-verify replay --plant lost " + file).code, 2);
}

TEST(Replay, StageByStageForAStep) {
  const auto right = run_tool("qsa-verify replay " + kData + "steps/step.right.safetensors");
  EXPECT_EQ(right.code, 0) << right.all();
  const auto wrong =
      run_tool("qsa-verify replay " + kData + "steps/step.score.no-relu.safetensors");
  EXPECT_EQ(wrong.code, 1) << wrong.all();
  EXPECT_TRUE(test::has(wrong.out, "score"));
}

TEST(Replay, ListShowsNamesDtypesShapesAndStrides) {
  const auto ran = run_tool("qsa-verify list " + kGolden + "qsa.attend/kv-halves.safetensors");
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "k_cache"));
  EXPECT_TRUE(test::has(ran.out, "op = qsa.attend"));
  EXPECT_TRUE(
      test::has(run_tool("qsa-verify list " + kData + "dumps/fortran.npy").out, "strides [1,"));
}

TEST(Replay, ListKeepsALongNameApartFromItsDtype) {
  const auto ran = run_tool("qsa-verify list " + kData + "steps/step.right.safetensors");
  EXPECT_TRUE(test::has(ran.out, "compress.compressor_state_block_table  i32 "));
}

TEST(Replay, BenchLoadsADump) {
  const auto ran =
      run_tool("qsa-bench run expand -d simt --min-time 0.01 --load " + kGolden + "qsa.expand/" +
               std::filesystem::path(files_in(kGolden + "qsa.expand").front()).filename().string());
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "oracle (float64, host)"));
}

}  // namespace
