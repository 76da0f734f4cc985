// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

Case expand_case(std::vector<int64_t> blocks, int64_t position, int64_t length,
                 int64_t request = 0) {
  const int64_t k = int64_t(blocks.size());
  return make_case("qsa.expand",
                   {{"block_indices", ids(blocks, {1, k})},
                    {"query_positions", ids({position})},
                    {"sequence_lengths", ids({length})},
                    {"token_to_req", ids({request})}},
                   {{"compress_ratio", "4"}, {"token_topk", std::to_string(4 * k)}});
}
std::vector<int64_t> tokens_of(const Case& c) { return oracle_of(c).outputs.at("indices").integer; }
std::vector<int64_t> padded(std::vector<int64_t> tokens, size_t width) {
  tokens.resize(width, -1);
  return tokens;
}

}  // namespace

TEST(QsaExpand, BlocksInTheirOrderThenTheTail) {  // B08, case 1
  EXPECT_EQ(tokens_of(expand_case({1, 0, -1, -1}, 10, 11)),
            padded({4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10}, 19));
}

TEST(QsaExpand, LengthShorterThanPositionDropsTheTailAndSaysWhatIsLost) {  // B08, case 2
  const Case c = expand_case({0, 1, 2, 3}, 10, 7);
  EXPECT_EQ(tokens_of(c), padded({0, 1, 2, 3}, 19));
  EXPECT_TRUE(has_finding(card_of("qsa.expand").findings(c),
                          "tokens 4 to 6 are in neither a block nor the tail"))
      << joined(card_of("qsa.expand").findings(c));
}

TEST(QsaExpand, ABlockIdOf2To30DoesNotWrap) {
  EXPECT_EQ(tokens_of(expand_case({int64_t{1} << 30, 1}, 7, 8)),
            padded({-1, -1, -1, -1, 4, 5, 6, 7}, 11));
}

TEST(QsaExpand, ATailMayBePartlyOutsideTheLength) {
  EXPECT_EQ(tokens_of(expand_case({0, 1}, 6, 6)), padded({0, 1, 2, 3, 4, 5, -1}, 11));
}

TEST(QsaExpand, PaddingRowsAreAllMinusOne) {  // B04
  for (const auto& [position, request] :
       {std::pair<int64_t, int64_t>{10, -1}, {-1, 0}, {-3, 0}, {10, 5}, {-5, 0}})
    EXPECT_EQ(tokens_of(expand_case({0, 1, 2, 3}, position, 11, request)), padded({}, 19))
        << position << " " << request;
}

TEST(QsaExpand, NoFindingsForAnHonestRow) {
  EXPECT_EQ(joined(card_of("qsa.expand").findings(expand_case({1, 0, -1, -1}, 10, 11))), "");
}

TEST(QsaExpand, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.expand"); }
