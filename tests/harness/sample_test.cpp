// SPDX-License-Identifier: Apache-2.0
#include "harness/run/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/generate/axes.h"
#include "harness/judge/poison.h"
#include "harness/ops/card.h"
#include "harness/ops/tq_cards.h"
#include "harness/run/execute.h"

namespace {

using namespace harness;

Case made(const std::string& op, const std::string& axes) {
  Case c = find_card(op)->generate(parse_coordinates(axes), 5);
  c.seed = 5;
  return c;
}

reference::Result truth_of(const Case& c) {
  const HostCall call(c);
  return reference::find(c.op)(toolkit::Args(find_card(c.op)->contract(), call.call()));
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// What lets the rest go unjudged: the oracle says of a row the same, whoever stands beside it.
TEST(Sample, EveryRowOfASuiteIsWhatItIsInTheWholeCase) {
  int cases = 0;
  for (const Card* card : cards()) {
    if (card->row_inputs().empty()) continue;
    for (const auto& entry : card->suite()) {
      const Case whole = made(std::string(card->op()), std::string(entry.axes));
      const int64_t all = whole.inputs.find(card->row_inputs().front())->second.shape[0];
      const auto sample = sample_rows(*card, whole, 2);
      EXPECT_EQ(sample.has_value(), all > 2) << card->op() << "/" << entry.name;
      if (!sample) continue;
      ++cases;
      const auto of_whole = truth_of(whole), of_sample = truth_of(sample->made);
      for (const auto& [name, some] : of_sample.outputs) {
        const reference::Output& o = of_whole.outputs.find(name)->second;
        ASSERT_EQ(o.shape[0], all);
        int64_t width = 1;
        for (size_t d = 1; d < o.shape.size(); ++d) width *= o.shape[d];
        for (int64_t i = 0; i < int64_t(sample->rows.size()) * width; ++i) {
          const size_t at = size_t(sample->rows[size_t(i / width)] * width + i % width);
          if (!some.integer.empty()) ASSERT_EQ(some.integer[size_t(i)], o.integer[at]) << name;
          if (some.value.empty()) continue;
          const bool judged = some.judged.empty() || some.judged[size_t(i)];
          ASSERT_EQ(judged, o.judged.empty() || o.judged[at]) << card->op() << "/" << entry.name;
          if (!judged) continue;
          ASSERT_TRUE(same(some.value[size_t(i)], o.value[at])) << card->op() << "/" << entry.name;
          // A chance that is spread over fewer elements bounds each of them no wider.
          ASSERT_LE(some.bound[size_t(i)], o.bound[at]) << card->op() << "/" << entry.name;
        }
      }
    }
  }
  EXPECT_GT(cases, 50);
}

TEST(Sample, FirstAndLastRowAreAlwaysInItAndTheSeedDrawsTheRest) {
  Case c = made("qsa.topk", "rows=40 columns=9 k=3");
  const auto rows = sample_rows(*find_card("qsa.topk"), c, 7)->rows;
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows.front(), 0);
  EXPECT_EQ(rows.back(), 39);
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows[i - 1], rows[i]);
  EXPECT_EQ(sample_rows(*find_card("qsa.topk"), c, 7)->rows, rows);
  c.seed = 6;
  EXPECT_NE(sample_rows(*find_card("qsa.topk"), c, 7)->rows, rows);
  EXPECT_EQ(sample_rows(*find_card("qsa.topk"), c, 1)->rows, std::vector<int64_t>{39});
  EXPECT_FALSE(sample_rows(*find_card("qsa.topk"), c, 40));
  EXPECT_FALSE(sample_rows(*find_card("qsa.topk"), c, 0));
  EXPECT_FALSE(
      sample_rows(*find_card("qsa.store"), made("qsa.store", "rows=30"), 4));  // the whole cache
}

class JudgedRows : public testing::Test {
 protected:
  const Case c = made("tq.decode", "batch=20 dim=32 ctx=20 dtype=f32");
  const Truth truth{*find_card("tq.decode"), c, 4};
  TensorMap right = oracle_outputs(c);
};

TEST_F(JudgedRows, ARightResultPassesAndSaysHowManyRowsWereJudged) {
  const Verdict v = truth.judge(right);
  EXPECT_EQ(v.status, Status::pass) << v.first_bad;
  EXPECT_EQ(v.reason, "judged 4 of 20 rows");
  EXPECT_EQ(v.judged, 4 * 4 * 32 + 4 * 4);
  EXPECT_EQ(Truth(*find_card("tq.decode"), c, 20).judge(right).reason, "");
}

TEST_F(JudgedRows, AWrongElementIsNamedByItsRowInTheWholeCase) {
  Tensor& output = right.at("output");
  output.set_real(output.count() - 5, 100);
  const Verdict v = truth.judge(right);
  EXPECT_EQ(v.status, Status::fail);
  EXPECT_EQ(v.mismatches, 1);
  EXPECT_EQ(v.first_bad.find("output: batch 19, head 3, dim 27"), 0u) << v.first_bad;
}

TEST_F(JudgedRows, ARowThatIsNotJudgedHasToBeWrittenAllTheSame) {
  const auto rows = sample_rows(*find_card("tq.decode"), c, 4)->rows;
  int64_t other = 1;
  while (std::ranges::find(rows, other) != rows.end()) ++other;
  Tensor& lse = right.at("lse");
  std::memcpy(lse.element(other * 4 + 2), output_poison(TK_F32).data(), 4);
  const Verdict v = truth.judge(right);
  EXPECT_EQ(v.status, Status::fail);
  EXPECT_EQ(
      v.reason.find("lse: unwritten=1 of the other rows, the first row " + std::to_string(other)),
      0u)
      << v.reason;
}

TEST(Sample, RowsOfTextsAreThoseOfTheWholeCase) {
  const RowSample sample{{0, 17, 99}, 100, {}};
  EXPECT_EQ(with_own_rows(sample, "row 1, head 2: NaN; batch 2, row 1 of 8 rows, row 7"),
            "row 17, head 2: NaN; batch 99, row 17 of 8 rows, row 7");
  EXPECT_EQ(with_own_rows(sample, ""), "");
}

}  // namespace
