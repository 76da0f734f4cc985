// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// One row, one head; a split's partial output is the same in all dims.
Case merge_case(std::vector<double> lse, std::vector<double> values, const char* dtype = "f32") {
  const int64_t splits = int64_t(lse.size());
  Tensor partial = make_tensor(TK_F32, {splits, 1, 1, 4});
  for (int64_t i = 0; i < partial.count(); ++i) partial.set_real(i, values[size_t(i / 4)]);
  return make_case(
      "qsa.merge",
      {{"partial_output", partial}, {"partial_lse", from_reals(TK_F32, lse, {splits, 1, 1})}},
      {{"output_dtype", dtype}});
}
double value_of(const Case& c) { return oracle_of(c).outputs.at("output").value[0]; }

}  // namespace

TEST(QsaMerge, WeightsAreBaseTwo) { EXPECT_DOUBLE_EQ(value_of(merge_case({1, 0}, {3, 0})), 2.0); }

TEST(QsaMerge, OneSplitIsItself) { EXPECT_EQ(value_of(merge_case({-700}, {0.375})), 0.375); }

TEST(QsaMerge, AnEmptySplitIsNotRead) {
  EXPECT_EQ(value_of(merge_case({-INFINITY, 5}, {NAN, 2})), 2.0);
}

TEST(QsaMerge, AllEmptyIsZeroExactly) {
  const reference::Result r = oracle_of(merge_case({-INFINITY, -INFINITY}, {NAN, INFINITY}));
  EXPECT_EQ(r.outputs.at("output").value[0], 0.0);
  EXPECT_EQ(r.outputs.at("output").bound[0], 0.0);
}

TEST(QsaMerge, ANanOrInfLseHasToGiveNan) {
  for (const double bad : {double(NAN), double(INFINITY)}) {
    const Case c = merge_case({bad, 0}, {1, 1});
    const reference::Result r = oracle_of(c);
    EXPECT_TRUE(std::isnan(r.outputs.at("output").value[0]));
    TensorMap results = right_results(c, r);
    EXPECT_EQ(name_of(judge(c, results).status), "pass");
    results.at("output").set_real(
        0, 0.0);  // what a kernel gives that lets the NaN fall out of a comparison
    EXPECT_EQ(name_of(judge(c, results).status), "fail");
  }
}

TEST(QsaMerge, OneUlpBesideAPowerOfTwoIsRight) {
  const Case c = merge_case({0}, {0.998678745}, "bf16");  // rounds to 1, where an ulp is 2^-7
  TensorMap results = right_results(c, oracle_of(c));
  for (const auto& [value, verdict] :
       {std::pair{1.0078125, "pass"}, std::pair{0.99609375, "pass"}, std::pair{1.015625, "fail"},
        std::pair{0.98828125, "fail"}}) {
    results.at("output").set_real(0, value);
    EXPECT_EQ(name_of(judge(c, results).status), verdict) << value;
  }
}

TEST(QsaMerge, ADumpsOwnResultSaysTheOutputDtype) {
  Case c = merge_case({1, 0}, {3, 0});
  c.scalars.clear();
  c.actual["output"] = make_tensor(TK_F16, {1, 1, 4});
  card_of("qsa.merge").complete(c);
  EXPECT_EQ(c.scalars.at("output_dtype"), "f16");
}

TEST(QsaMerge, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.merge"); }
