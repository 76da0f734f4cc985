// SPDX-License-Identifier: Apache-2.0
// No kernel runs here: recorded results are judged. What the original kernels computed has to pass
// (golden), and of the candidates and steps exactly those that truth.csv calls right.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "harness/dumps/case_loader.h"
#include "harness/judge/stages.h"
#include "harness/ops/card.h"
#include "reference/oracle.h"

namespace harness {
namespace {

const std::filesystem::path kSource = TOOLKIT_SOURCE_DIR;

// Rows of a CSV without quotes, the head dropped.
std::vector<std::vector<std::string>> rows_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::vector<std::string> fields;
    std::stringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) fields.push_back(cell);
    if (!fields.empty()) rows.push_back(fields);
  }
  return rows;
}

Verdict judge(const Case& c, const TensorMap& results) {
  const Card& card = *find_card(c.op);
  const HostCall call(c);
  return card.judge(c, reference::find(c.op)(toolkit::Args(card.contract(), call.call())), results);
}

std::string text_of(const Verdict& v) {
  return std::string(name_of(v.status)) + ": " + v.reason + " | " + v.first_bad + " | used " +
         std::to_string(v.used_share);
}

TEST(Golden, EveryOracleAgreesWithWhatTheOriginalsComputed) {
  std::vector<std::filesystem::path> files;
  for (const auto& f : std::filesystem::recursive_directory_iterator(kSource / "datasets/golden"))
    if (f.path().extension() == ".safetensors") files.push_back(f.path());
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 137u);
  std::map<std::string, double> worst;
  int passed = 0;
  for (const auto& f : files) {
    SCOPED_TRACE(std::filesystem::relative(f, kSource).string());
    try {
      const Case c = load_case({f});
      ASSERT_FALSE(c.expected.empty());
      const Verdict v = judge(c, c.expected);
      EXPECT_EQ(v.status, Status::pass) << text_of(v);
      passed += v.status == Status::pass;
      worst[c.op] = std::max(worst[c.op], v.used_share);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  std::printf("golden: %d of %zu pass\n", passed, files.size());
  for (const auto& [op, share] : worst)
    std::printf("  %-14s worst error %.3f of its bound\n", op.c_str(), share);
}

TEST(Candidates, RightResultsPassAndEveryFaultIsSeen) {
  const auto truth = rows_of(kSource / "tests/data/candidates/truth.csv");
  ASSERT_EQ(truth.size(), 114u);
  int agreed = 0;
  for (const auto& row : truth) {
    SCOPED_TRACE(row[0]);
    try {
      const Case c = load_case({kSource / "tests/data/candidates" / row[0]});
      ASSERT_FALSE(c.actual.empty());
      const Verdict v = judge(c, c.actual);
      const bool agrees = v.status == (row[1] == "pass" ? Status::pass : Status::fail);
      EXPECT_TRUE(agrees) << "truth " << row[1] << ", judged " << text_of(v);
      agreed += agrees;
      if (v.status == Status::fail) {
        EXPECT_FALSE(v.first_bad.empty());
        EXPECT_FALSE(v.reason.empty());
      }
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  std::printf("candidates: %d of %zu as truth.csv says\n", agreed, truth.size());
}

TEST(Steps, TheFaultyStageIsNamedAndNoOther) {
  const auto truth = rows_of(kSource / "tests/data/steps/truth.csv");
  ASSERT_EQ(truth.size(), 16u);
  int agreed = 0;
  for (const auto& row : truth) {
    SCOPED_TRACE(row[0]);
    try {
      const Case c = load_case({kSource / "tests/data/steps" / row[0]});
      ASSERT_TRUE(has_stages(c));
      std::string blamed, why;
      for (const StageVerdict& s : judge_each_stage(c, c.actual))
        if (s.verdict.status != Status::pass) {
          blamed += (blamed.empty() ? "" : " and ") + s.stage;
          why += s.stage + ": " + text_of(s.verdict) + "\n";
        }
      if (blamed.empty()) blamed = "none";
      EXPECT_EQ(blamed, row[1]) << why;
      agreed += blamed == row[1];
      const Verdict whole = judge_stages(c, c.actual);
      EXPECT_EQ(whole.status, row[1] == "none" ? Status::pass : Status::fail);
      if (row[1] != "none") EXPECT_TRUE(whole.reason.starts_with(row[1] + ": ")) << whole.reason;
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  std::printf("steps: %d of %zu as truth.csv says\n", agreed, truth.size());
}

}  // namespace
}  // namespace harness
