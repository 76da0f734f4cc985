// SPDX-License-Identifier: Apache-2.0
#include "tq/rotate.h"

#include "harness/generate/fill.h"
#include "harness/generate/turboquant.h"
#include "suite.h"

namespace tq_test {
namespace {

harness::Case two_dimensional(double query0, double query1) {
  harness::Case c;
  c.op = "tq.rotate";
  c.inputs["query"] = harness::from_reals(TK_F32, {query0, query1}, {1, 1, 2});
  c.inputs["Pi"] = harness::from_reals(TK_F32, {0, -1, 1, 0}, {2, 2});
  return c;
}

TEST(TqRotate, MultipliesByPiAndNotByItsTranspose) {
  const auto truth = oracle(two_dimensional(3, 5)).outputs.at("q_rot");
  EXPECT_EQ(truth.value, (std::vector<double>{-5, 3}));
}

TEST(TqRotate, BoundFollowsTheMagnitudesOfTheCase) {
  const auto small = oracle(two_dimensional(3, 5)).outputs.at("q_rot");
  const auto large = oracle(two_dimensional(3 * 1024, 5 * 1024)).outputs.at("q_rot");
  for (size_t i = 0; i < 2; ++i) EXPECT_DOUBLE_EQ(large.bound[i], 1024 * small.bound[i]);
}

TEST(TqRotate, NanQueryIsNamedAndOnlyItsHeadIsNotJudged) {
  const harness::Case c = made("tq.rotate", "hostile=nan batch=1 heads=2 dim=8");
  const reference::Result truth = oracle(c);
  EXPECT_TRUE(mentions(truth.findings, "batch 0, head 1: the query holds NaN"));
  const auto& judged = truth.outputs.at("q_rot").judged;
  EXPECT_EQ(std::count(judged.begin(), judged.end(), 0), 8);
  EXPECT_EQ(judged[0], 1);
}

TEST(TqRotate, RefusesTheCornerOfALargerHadamardMatrix) {
  harness::Case c = made("tq.rotate", "dim=80");
  const harness::Tensor large = harness::tq_rotation("hadamard", 128, harness::Random(1, "Pi"));
  c.inputs["Pi"] = harness::view(large, 0, {80, 80}, {128, 1});
  try {
    card("tq.rotate").check_data(c);
    FAIL() << "accepted";
  } catch (const toolkit::Violation& v) {
    EXPECT_EQ(v.name, "Pi");
    EXPECT_NE(v.got.find(" at ["), std::string::npos) << v.got;
  }
  c.inputs["Pi"] = large;
  const harness::HostCall call(c);
  EXPECT_THROW(toolkit::Args(tq::rotate::contract, call.call()).check(false), toolkit::Violation);
}

TEST(TqRotate, SuitePassesAndItsFaultsAreNoticed) { expect_suite_judges("tq.rotate", 5); }
TEST(TqRotate, CasesAreRepeatable) { expect_repeatable("tq.rotate", "Pi"); }

}  // namespace
}  // namespace tq_test
