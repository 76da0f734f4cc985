// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// One head of dim 1 and scores that are the keys themselves: 8 blocks, k = 2, a tail of `tail`
// tokens.
Case scored(std::vector<double> keys, int64_t tail = 1) {
  const int64_t n = int64_t(keys.size());
  return make_case("qsa.select",
                   {{"q", from_reals(TK_F32, {1}, {1, 1, 1})},
                    {"k_cache", from_reals(TK_F32, keys, {1, n, 1, 1})},
                    {"page_table", ids({0}, {1, 1})},
                    {"token_to_req", ids({0})},
                    {"query_positions", ids({4 * n - 1 + tail})},
                    {"sequence_lengths", ids({4 * n + tail})}},
                   {{"compress_ratio", "4"}, {"token_topk", "8"}, {"score_scale", "1"}});
}
Verdict judge_tokens(const Case& c, std::vector<int64_t> tokens) {
  return judge(c, {{"indices", ids(tokens, {1, int64_t(tokens.size())})}});
}
std::vector<int64_t> tokens_of_blocks(std::vector<int64_t> blocks, std::vector<int64_t> rest) {
  std::vector<int64_t> out;
  for (const int64_t b : blocks)
    for (int64_t j = 0; j < 4; ++j) out.push_back(4 * b + j);
  out.insert(out.end(), rest.begin(), rest.end());
  out.resize(11, -1);
  return out;
}

}  // namespace

TEST(QsaSelect, TakesTheBestBlocksAndTheTail) {
  const Case c = scored({1, 9, 2, 8, 3, 3, 3, 3});
  EXPECT_EQ(oracle_of(c).outputs.at("indices").integer, tokens_of_blocks({1, 3}, {32}));
}

TEST(QsaSelect, TheOrderOfBlocksIsFree) {
  const Case c = scored({1, 9, 2, 8, 3, 3, 3, 3});
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({3, 1}, {32})).status), "pass");
}

TEST(QsaSelect, TheOrderIsFreeWhereEverythingIsVisibleToo) {
  const Case c = scored({1, 9});
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({1, 0}, {8})).status), "pass");
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({0, 0}, {8})).status), "fail");
}

TEST(QsaSelect, TokensOfABlockAscend) {
  std::vector<int64_t> tokens = tokens_of_blocks({1, 3}, {32});
  std::swap(tokens[1], tokens[2]);
  const Verdict v = judge_tokens(scored({1, 9, 2, 8, 3, 3, 3, 3}), tokens);
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(v.first_bad.find("column 1"), std::string::npos) << v.first_bad;
}

TEST(QsaSelect, AWorseBlockFailsWithItsScores) {
  const Verdict v = judge_tokens(scored({1, 9, 2, 8, 3, 3, 3, 3}), tokens_of_blocks({1, 4}, {32}));
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(
      v.reason.find("wrong_selected=1: block 4 (score 3) is chosen, block 3 (score 8) is not"),
      std::string::npos)
      << v.reason;
}

TEST(QsaSelect, OnlyScoresWithinTheirBoundsMayStandForEachOther) {
  const double near = 8 + 0x1p-21;  // one fp32 ulp above 8 is 2^-20
  EXPECT_EQ(
      name_of(
          judge_tokens(scored({9, 8, near, 1, 1, 1, 1, 1}), tokens_of_blocks({0, 1}, {32})).status),
      "pass");
  EXPECT_EQ(
      name_of(
          judge_tokens(scored({9, 8, 8.01, 1, 1, 1, 1, 1}), tokens_of_blocks({0, 1}, {32})).status),
      "fail");
}

TEST(QsaSelect, TailAndMinusOneAreExact) {
  const Case c = scored({1, 9, 2, 8, 3, 3, 3, 3}, 2);
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({1, 3}, {32, 33})).status), "pass");
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({1, 3}, {32})).status), "fail");
  EXPECT_EQ(name_of(judge_tokens(c, tokens_of_blocks({1, 3}, {32, 33, 34})).status), "fail");
}

TEST(QsaSelect,
     BlocksWithoutAColumnAreHolesBeforeTheTail) {  // the table holds one block, the row sees four
  Case c = scored({5});
  c.inputs["query_positions"] = ids({16});
  c.inputs["sequence_lengths"] = ids({17});
  c.inputs["k_cache"] = from_reals(TK_F32, {5}, {1, 1, 1, 1});
  EXPECT_EQ(oracle_of(c).outputs.at("indices").integer,
            (std::vector<int64_t>{0, 1, 2, 3, -1, -1, -1, -1, 16, -1, -1}));
  EXPECT_EQ(name_of(judge_tokens(c, {0, 1, 2, 3, -1, -1, -1, -1, 16, -1, -1}).status), "pass");
  EXPECT_EQ(name_of(judge_tokens(c, {0, 1, 2, 3, 16, -1, -1, -1, -1, -1, -1}).status), "fail");
}

TEST(QsaSelect, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.select"); }
