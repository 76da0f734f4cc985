// SPDX-License-Identifier: Apache-2.0
#include "tq/merge.h"

#include <cmath>

#include "harness/generate/fill.h"
#include "suite.h"

namespace tq_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One head of D = 2: {o0, o1, lse} a split.
harness::Case one_head(const std::vector<double>& mid, int64_t tokens) {
  harness::Case c;
  c.op = "tq.merge";
  c.inputs["mid_o"] = harness::from_reals(TK_F32, mid, {1, 1, int64_t(mid.size()) / 3, 3});
  c.inputs["seq_lens"] = harness::from_integers(TK_I32, {tokens});
  c.scalars["output_dtype"] = "f32";
  return c;
}

TEST(TqMerge, WeighsByTheNaturalExponential) {
  const reference::Result truth = oracle(one_head({1, -2, 0, 5, 6, 1}, 8));
  const double w = std::exp(1.0);
  EXPECT_NEAR(truth.outputs.at("output").value[0], (1 + 5 * w) / (1 + w), 1e-12);
  EXPECT_NEAR(truth.outputs.at("output").value[1], (-2 + 6 * w) / (1 + w), 1e-12);
  EXPECT_NEAR(truth.outputs.at("lse").value[0], std::log(1 + w), 1e-12);
}

TEST(TqMerge, NeverReadsAnEmptySplit) {
  // 5 tokens in 4 splits: ranges of 2, the fourth is empty.
  const reference::Result truth = oracle(one_head({1, 1, 0, 2, 2, 0, 3, 3, 0, NAN, NAN, NAN}, 5));
  EXPECT_DOUBLE_EQ(truth.outputs.at("output").value[0], 2);
  EXPECT_TRUE(truth.findings.empty());
}

TEST(TqMerge, MinusInfinityWeighsNothingWhateverItsPartial) {
  const reference::Result truth = oracle(one_head({1e30, NAN, -kInf, 2, 4, 7}, 8));
  EXPECT_DOUBLE_EQ(truth.outputs.at("output").value[1], 4);
  EXPECT_DOUBLE_EQ(truth.outputs.at("lse").value[0], 7);
}

TEST(TqMerge, NothingLiveGivesZeroAndMinusInfinity) {
  for (const harness::Case& c : {one_head({1, 2, -kInf}, 3), one_head({1, 2, 3}, 0), one_head({1, 2, 3}, -4)}) {
    const reference::Result truth = oracle(c);
    EXPECT_EQ(truth.outputs.at("output").value, (std::vector<double>{0, 0}));
    EXPECT_EQ(truth.outputs.at("output").bound, (std::vector<double>{0, 0}));
    EXPECT_EQ(truth.outputs.at("lse").value[0], -kInf);
  }
}

TEST(TqMerge, NanOrInfiniteLseIsNamedAndNotJudged) {
  for (double lse : {double(NAN), kInf}) {
    const reference::Result truth = oracle(one_head({1, 2, lse, 1, 2, 0}, 8));
    EXPECT_TRUE(mentions(truth.findings, "batch 0, head 0, split 0"));
    EXPECT_EQ(truth.outputs.at("output").judged, (std::vector<uint8_t>{0, 0}));
    EXPECT_EQ(truth.outputs.at("lse").judged[0], 0);
  }
}

TEST(TqMerge, UsedSplitsFollowTheCeilingPartition) {
  // Splits that 32 of them use, by sequence length.
  const std::pair<int64_t, int> expected[] = {{1, 1}, {31, 31}, {32, 32}, {33, 17}, {63, 32}, {64, 32}, {65, 22}, {100, 25}};
  for (const auto& [tokens, used] : expected) {
    std::vector<double> mid;
    for (int s = 0; s < 32; ++s) mid.insert(mid.end(), {1.0, 1.0, 0.0});
    const reference::Result truth = oracle(one_head(mid, tokens));
    EXPECT_NEAR(truth.outputs.at("lse").value[0], std::log(double(used)), 1e-12) << tokens;
  }
}

TEST(TqMerge, ADumpSaysTheOutputTypeByItsResult) {
  harness::Case c = one_head({1, 2, 3}, 1);
  c.scalars.clear();
  c.actual["output"] = harness::make_tensor(TK_BF16, {1, 1, 2});
  card("tq.merge").complete(c);
  EXPECT_EQ(c.scalars.at("output_dtype"), "bf16");
}

TEST(TqMerge, SuitePassesAndItsFaultsAreNoticed) { expect_suite_judges("tq.merge", 4); }
TEST(TqMerge, CasesAreRepeatable) { expect_repeatable("tq.merge", "mid_o"); }

}  // namespace
}  // namespace tq_test
