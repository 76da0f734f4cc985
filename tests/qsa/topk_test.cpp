// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

Case topk_case(std::vector<double> row, int64_t visible, int64_t k) {
  const int64_t columns = int64_t(row.size());
  return make_case(
      "qsa.topk",
      {{"logits", from_reals(TK_F32, row, {1, columns})}, {"visible_blocks", ids({visible})}},
      {{"k", std::to_string(k)}});
}
std::vector<int64_t> chosen_of(const Case& c) {
  return oracle_of(c).outputs.at("block_indices").integer;
}
Verdict judge_choice(const Case& c, std::vector<int64_t> chosen) {
  const int64_t k = int64_t(chosen.size());
  return judge(c, {{"block_indices", ids(chosen, {1, k})}});
}

}  // namespace

TEST(QsaTopk, BestFirstByValueAscendingByColumn) {
  EXPECT_EQ(chosen_of(topk_case({1, 5, 3, 4}, 4, 2)), (std::vector<int64_t>{1, 3}));
}

TEST(QsaTopk, TiesGoToTheLowerColumn) {
  EXPECT_EQ(chosen_of(topk_case({2, 1, 2, 2, 1}, 5, 2)), (std::vector<int64_t>{0, 2}));
}

TEST(QsaTopk, OrderIsInfFiniteMinusInfNan) {
  EXPECT_EQ(chosen_of(topk_case({NAN, -INFINITY, -1e30, INFINITY}, 4, 1)),
            (std::vector<int64_t>{3}));
  EXPECT_EQ(chosen_of(topk_case({NAN, -INFINITY, -1e30, INFINITY}, 4, 3)),
            (std::vector<int64_t>{1, 2, 3}));
}

TEST(QsaTopk, BothZerosAreEqual) {
  EXPECT_EQ(chosen_of(topk_case({-0.0, 0.0, -1}, 3, 1)), (std::vector<int64_t>{0}));
}

TEST(QsaTopk, ScoresAreNotLookedAtWhereEverythingFits) {
  EXPECT_EQ(chosen_of(topk_case({NAN, -INFINITY, 7}, 3, 5)),
            (std::vector<int64_t>{0, 1, 2, -1, -1}));
  EXPECT_EQ(chosen_of(topk_case({1, 2, 3}, 99, 3)), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(chosen_of(topk_case({1, 2, 3}, -4, 2)), (std::vector<int64_t>{-1, -1}));
}

TEST(QsaTopk, AnyOrderAndAnyOfExactTiesPass) {
  const Case c = topk_case({1, 2, 2, 2, 3}, 5, 3);
  EXPECT_EQ(name_of(judge_choice(c, {4, 3, 1}).status), "pass");
  EXPECT_EQ(name_of(judge_choice(c, {2, 4, 3}).status), "pass");
}

TEST(QsaTopk, NoToleranceHidesANeighbouringValue) {
  const float a = 1.0f, b = std::nextafter(1.0f, 2.0f);
  const Case c = topk_case({a, b, a}, 3, 1);
  const Verdict v = judge_choice(c, {0});
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(v.reason.find("wrong_selected=1"), std::string::npos) << v.reason;
}

TEST(QsaTopk, FaultsAreNamedByKind) {
  const Case c = topk_case({5, 4, 3, 2, 1}, 4, 3);
  EXPECT_NE(judge_choice(c, {0, 1, 1}).reason.find("duplicates=1"), std::string::npos);
  EXPECT_NE(judge_choice(c, {0, 1, 4}).reason.find("out_of_range=1"), std::string::npos);
  EXPECT_NE(judge_choice(c, {0, 1, -7}).reason.find("out_of_range=1"), std::string::npos);
  EXPECT_NE(judge_choice(c, {0, 1, -1}).reason.find("unfilled_slots=1"), std::string::npos);
  const Case few = topk_case({5, 4, 3}, 2, 3);
  EXPECT_NE(judge_choice(few, {0, 1, 2}).reason.find("not_minus_one_behind=1"), std::string::npos);
}

// B01: a staging buffer that overflows drops winners for values just below the threshold.
TEST(QsaTopk, ThreeWinnersLostInACrowdedBinAreCounted) {
  const Card& card = card_of("qsa.topk");
  const Case c = card.generate(parse_coordinates("rows=2 columns=4097 k=2048 values=crowded"), 3);
  const reference::Result truth = oracle_of(c);
  TensorMap results = right_results(c, truth);
  EXPECT_EQ(name_of(card.judge(c, truth, results).status), "pass");
  Tensor& t = results.at("block_indices");
  std::set<int64_t> chosen;
  for (int64_t s = 0; s < 2048; ++s) chosen.insert(t.integer(2048 + s));
  // The three best of those not chosen, for three of row 1's winners.
  std::vector<std::pair<double, int64_t>> rest;
  for (int64_t col = 0; col < 4097; ++col)
    if (!chosen.contains(col)) rest.emplace_back(-c.inputs.at("logits").real(4097 + col), col);
  std::sort(rest.begin(), rest.end());
  for (int64_t i = 0; i < 3; ++i) t.set_integer(2048 + 500 * i, rest[size_t(i)].second);
  const Verdict v = card.judge(c, truth, results);
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(v.reason.find("wrong_selected=3"), std::string::npos) << v.reason;
  EXPECT_NE(v.reason.find("row 1"), std::string::npos) << v.reason;
}

// B02: thousands of exact zeros fill the tie buffer and the rest of the row stays -1.
TEST(QsaTopk, AnySubsetOfZeroTiesPassesAndUnfilledSlotsAreCounted) {
  const Card& card = card_of("qsa.topk");
  const Case c =
      card.generate(parse_coordinates("rows=1 columns=8320 k=2048 values=relu winners=100"), 5);
  const reference::Result truth = oracle_of(c);
  TensorMap results = right_results(c, truth);
  Tensor& t = results.at("block_indices");
  std::set<int64_t> chosen;
  for (int64_t s = 0; s < 2048; ++s) chosen.insert(t.integer(s));
  int64_t other = 8319;
  for (int64_t s = 0; s < 2048; ++s)
    if (c.inputs.at("logits").real(t.integer(s)) == 0) {
      while (chosen.contains(other) || c.inputs.at("logits").real(other) != 0) --other;
      t.set_integer(s, other--);
    }
  EXPECT_EQ(name_of(card.judge(c, truth, results).status), "pass");
  for (int64_t s = 2048 - 924; s < 2048; ++s) t.set_integer(s, -1);
  const Verdict v = card.judge(c, truth, results);
  EXPECT_NE(v.reason.find("unfilled_slots=924"), std::string::npos) << v.reason;
}

TEST(QsaTopk, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.topk"); }
