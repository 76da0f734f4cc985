// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/generate/fill.h"
#include "harness/judge/compare.h"
#include "harness/judge/poison.h"

namespace harness {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

reference::Output real_truth(std::vector<double> value, double bound, Shape shape) {
  reference::Output o;
  o.dtype = TK_F32;
  o.shape = shape;
  o.bound.assign(value.size(), bound);
  o.value = std::move(value);
  return o;
}

std::string place(int64_t i) { return "element " + std::to_string(i); }

Verdict judge(const reference::Output& truth, const std::vector<double>& got) {
  return compare("qsa.x", "output", truth, from_reals(truth.dtype, got, truth.shape), place);
}

TEST(Judge, AcceptsWhatIsWithinItsBoundAndSaysHowMuchWasUsed) {
  const Verdict v = judge(real_truth({1, 2}, 0.5, {2}), {1.25, 2});
  EXPECT_EQ(v.status, Status::pass);
  EXPECT_EQ(v.judged, 2);
  EXPECT_EQ(v.err_max_abs, 0.25);
  EXPECT_EQ(v.used_share, 0.5);
  EXPECT_EQ(v.bound, 0.5);
}

TEST(Judge, NamesTheFirstBadElementAndHowFarBeyond) {
  const Verdict v = judge(real_truth({1, 2, 3}, 0.5, {3}), {1, 3, 5});
  EXPECT_EQ(v.status, Status::fail);
  EXPECT_EQ(v.mismatches, 2);
  EXPECT_EQ(v.used_share, 4.0);
  EXPECT_EQ(v.first_bad, "output: element 1: expected 2 +- 0.5, got 3 (2 times the bound)");
  EXPECT_EQ(v.reason, "output: 2 of 3 elements beyond their bound");
}

TEST(Judge, NanFailsEvenWithAnInfiniteBound) {
  const Verdict v = judge(real_truth({1, 2}, kInf, {2}), {kNan, 2});
  EXPECT_EQ(v.status, Status::fail);
  EXPECT_EQ(v.nonfinite, 1);
  EXPECT_EQ(v.reason, "output: 1 of 2 elements beyond their bound, 1 NaN or inf");
}

TEST(Judge, InfinityHasToBeMetExactlyAndNanByNan) {
  EXPECT_EQ(judge(real_truth({-kInf, kNan}, 0, {2}), {-kInf, kNan}).status, Status::pass);
  EXPECT_EQ(judge(real_truth({-kInf}, 1e30, {1}), {-3e38}).status, Status::fail);
  EXPECT_EQ(judge(real_truth({-kInf}, 1e30, {1}), {kInf}).status, Status::fail);
  EXPECT_EQ(judge(real_truth({kNan}, 0, {1}), {0}).status, Status::fail);
  EXPECT_EQ(judge(real_truth({0}, 1e30, {1}), {kInf}).status, Status::fail);
}

TEST(Judge, ABoundOfZeroMeansEqual) {
  EXPECT_EQ(judge(real_truth({1}, 0, {1}), {1}).status, Status::pass);
  EXPECT_EQ(judge(real_truth({1}, 0, {1}), {std::nextafter(1.f, 2.f)}).status, Status::fail);
  EXPECT_EQ(judge(real_truth({0.0}, 0, {1}), {-0.0}).status, Status::pass);
}

TEST(Judge, PassesOverElementsThatAreNotJudged) {
  reference::Output truth = real_truth({1, 2}, 0, {2});
  truth.judged = {0, 1};
  const Verdict v = judge(truth, {kNan, 2});
  EXPECT_EQ(v.status, Status::pass);
  EXPECT_EQ(v.judged, 1);
  truth.judged = {0, 0};
  EXPECT_EQ(judge(truth, {kNan, 2}).status, Status::skip);
}

TEST(Judge, NoRowsIsASkipNotAPass) {
  const Verdict v = judge(real_truth({}, 0, {0, 4}), {});
  EXPECT_EQ(v.status, Status::skip);
  EXPECT_EQ(v.reason, "0 rows");
}

TEST(Judge, CountsUnwrittenElementsAndRows) {
  Tensor t = make_tensor(TK_F32, {3, 2});
  poison(t);
  t.set_real(0, 1);
  t.set_real(1, 1);
  t.set_real(3, 1);
  const Verdict v =
      compare("qsa.x", "output", real_truth({1, 1, 1, 1, 1, 1}, 0.1, {3, 2}), t, place);
  EXPECT_EQ(v.unwritten, 3);
  EXPECT_EQ(v.reason, "output: 3 of 6 elements beyond their bound, unwritten=2 rows, 3 NaN or inf");
  EXPECT_EQ(v.first_bad, "output: element 2: expected 1 +- 0.1, got nothing written");
}

TEST(Judge, PoisonIsNotANanThatWasComputed) {
  Tensor t = make_tensor(TK_BF16, {1});
  reference::Output truth = real_truth({kNan}, 0, {1});
  truth.dtype = TK_BF16;
  poison(t);
  EXPECT_EQ(compare("qsa.x", "output", truth, t, place).status, Status::fail);
  fill_poison(t);  // a NaN of an unused input that was passed on
  EXPECT_EQ(compare("qsa.x", "output", truth, t, place).status, Status::pass);
}

TEST(Judge, EveryDtypeHasAPoison) {
  for (const auto& d : toolkit::kDtypes) {
    Tensor t = make_tensor(d.dtype, {2});
    poison(t);
    EXPECT_TRUE(is_output_poison(d.dtype, t.element(1))) << d.name;
    if (d.dtype == TK_F16 || d.dtype == TK_BF16 || d.dtype == TK_F32 || d.dtype == TK_F64)
      EXPECT_TRUE(std::isnan(t.real(1))) << d.name;
  }
}

TEST(Judge, CallsOutAnOutputOfZeros) {
  EXPECT_EQ(judge(real_truth({1, 2}, 0.5, {2}), {0, 0}).reason,
            "output: 2 of 2 elements beyond their bound, output norm 0");
}

TEST(Judge, IntegersAndBytesAreExact) {
  reference::Output truth;
  truth.dtype = TK_I32;
  truth.shape = {3};
  truth.integer = {5, -1, int64_t{1} << 30};
  EXPECT_EQ(compare("qsa.x", "i", truth, from_integers(TK_I32, truth.integer), place).status,
            Status::pass);
  const Verdict v = compare("qsa.x", "i", truth, from_integers(TK_I32, {5, -1, 7}), place);
  EXPECT_EQ(v.first_bad, "i: element 2: expected 1073741824, got 7");
  EXPECT_EQ(v.reason, "i: 1 of 3 elements wrong");

  reference::Output bytes;
  bytes.dtype = TK_F16;
  bytes.shape = {2};
  bytes.bytes = {0x00, 0x3c, 0x00, 0x80};  // 1, -0
  EXPECT_EQ(compare("qsa.x", "b", bytes, from_reals(TK_F16, {1, -0.0}, {2}), place).status,
            Status::pass);
  const Verdict w = compare("qsa.x", "b", bytes, from_reals(TK_F16, {1, 0}, {2}), place);
  EXPECT_EQ(w.first_bad, "b: element 1: expected 0x8000, got 0x0000");
}

TEST(Judge, ReadsStridedResults) {
  const Tensor base = from_reals(TK_F32, {1, 9, 2, 9}, {4});
  EXPECT_EQ(
      compare("qsa.x", "output", real_truth({1, 2}, 0, {2}), view(base, 0, {2}, {2}), place).status,
      Status::pass);
}

TEST(Judge, AnotherShapeOrDtypeIsAViolation) {
  const reference::Output truth = real_truth({1, 2}, 0, {2});
  try {
    compare("qsa.x", "output", truth, from_reals(TK_BF16, {1, 2}, {2}), place);
    FAIL();
  } catch (const toolkit::Violation& v) {
    EXPECT_STREQ(v.what(), "qsa.x: output: expected f32 [2], got bf16 [2]");
  }
  EXPECT_THROW(compare("qsa.x", "output", truth, from_reals(TK_F32, {1, 2}, {1, 2}), place),
               toolkit::Violation);
}

TEST(Judge, AnOracleWithoutAllElementsIsAFaultOfTheProgram) {
  reference::Output truth = real_truth({1}, 0, {2});
  EXPECT_THROW(judge(truth, {1, 2}), std::logic_error);
}

TEST(Fold, TheWorstStatusAndShareWinAndTheFirstBadStays) {
  Verdict a;
  a.used_share = 0.1;
  a.bound = 1;
  Verdict b;
  b.status = Status::fail;
  b.reason = "b";
  b.first_bad = "first";
  b.used_share = 3;
  b.bound = 7;
  b.judged = 4;
  Verdict c = b;
  c.first_bad = "second";
  c.reason = "c";
  fold(a, b);
  fold(a, c);
  EXPECT_EQ(a.status, Status::fail);
  EXPECT_EQ(a.reason, "b; c");
  EXPECT_EQ(a.first_bad, "first");
  EXPECT_EQ(a.used_share, 3);
  EXPECT_EQ(a.bound, 7);
  EXPECT_EQ(a.judged, 8);
  Verdict skip;
  skip.status = Status::skip;
  Verdict pass;
  fold(pass, skip);
  EXPECT_EQ(pass.status, Status::pass);
}

}  // namespace
}  // namespace harness
