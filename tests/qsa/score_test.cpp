// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// One request, one page of 4 keys of dim 2, two heads: key c is (c, 1).
Case tiny(std::vector<int64_t> pages = {0}, int64_t position = 15, int64_t length = 16) {
  return make_case("qsa.score",
                   {{"q", from_reals(TK_BF16, {1, 0, 0, -1}, {1, 2, 2})},
                    {"k_cache", from_reals(TK_BF16, {0, 1, 1, 1, 2, 1, 3, 1}, {1, 4, 1, 2})},
                    {"page_table", ids(pages, {1, int64_t(pages.size())})},
                    {"token_to_req", ids({0})},
                    {"query_positions", ids({position})},
                    {"sequence_lengths", ids({length})}},
                   {{"compress_ratio", "4"}, {"score_scale", "2"}});
}
std::vector<double> scores_of(const Case& c) { return oracle_of(c).outputs.at("logits").value; }
int64_t visible_of(const Case& c) { return oracle_of(c).outputs.at("visible_blocks").integer[0]; }
constexpr double kInf = INFINITY;

}  // namespace

TEST(QsaScore, ReluPerHeadThenTheDivisor) {
  EXPECT_EQ(scores_of(tiny()),
            (std::vector<double>{0, 0.5, 1, 1.5}));  // the second head is -1: adds nothing
}

TEST(QsaScore, ColumnsThatAreNotVisibleAreMinusInf) {
  EXPECT_EQ(scores_of(tiny({0}, 8, 16)), (std::vector<double>{0, 0.5, -kInf, -kInf}));
  EXPECT_EQ(scores_of(tiny({0}, 15, 7)), (std::vector<double>{0, -kInf, -kInf, -kInf}));
}

TEST(QsaScore, DeadPagesAreMinusInfAndVisibleIsNotClamped) {
  const Case c = tiny({1, 0}, 47, 48);  // 12 visible, 8 columns
  EXPECT_EQ(scores_of(c), (std::vector<double>{-kInf, -kInf, -kInf, -kInf, 0, 0.5, 1, 1.5}));
  EXPECT_EQ(visible_of(c), 12);
}

TEST(QsaScore, NegativePositionsAndForeignRequestsSeeNothing) {  // B04
  for (const auto& [position, request] :
       {std::pair<int64_t, int64_t>{10, -1}, {-1, 0}, {-3, 0}, {10, 5}, {-5, 0}}) {
    Case c = tiny({0}, position, 11);
    c.inputs["token_to_req"] = ids({request});
    EXPECT_EQ(visible_of(c), 0);
    for (const double s : scores_of(c)) EXPECT_EQ(s, -kInf);
  }
}

TEST(QsaScore, ANegativeVisibleCountIsJudgedAsZero) {
  const Case c = tiny({0}, -3, 11);
  TensorMap results = right_results(c, oracle_of(c));
  results.at("visible_blocks").set_integer(0, -1);
  EXPECT_EQ(name_of(judge(c, results).status), "pass");
}

TEST(QsaScore, ANanDotAddsNothing) {
  Case c = tiny();
  Tensor k = c.inputs.at("k_cache").packed();
  for (int64_t d = 0; d < 2; ++d) k.set_real(3 * 2 + d, NAN);
  c.inputs["k_cache"] = k;
  EXPECT_EQ(scores_of(c)[3], 0.0);  // not -inf
}

TEST(QsaScore, TheBoundHoldsForFp32SumsInAnyOrder) {
  const Case c = suite_case("qsa.score", "decode");
  const reference::Result truth = oracle_of(c);
  const reference::Output& o = truth.outputs.at("logits");
  const Tensor& q = c.inputs.at("q");
  const Tensor& k = c.inputs.at("k_cache");
  const int64_t columns = o.shape[1], dim = q.shape[2], page = k.shape[1];
  for (int64_t i = 0; i < o.shape[0]; ++i)
    for (int64_t col = 0; col < columns; ++col) {
      if (o.value[size_t(i * columns + col)] == -kInf) continue;
      const int64_t id =
          c.inputs.at("page_table").integer(i * c.inputs.at("page_table").shape[1] + col / page);
      for (const bool backward : {false, true}) {
        float sum = 0;
        for (int64_t h = 0; h < q.shape[1]; ++h) {
          float dot = 0;
          for (int64_t e = 0; e < dim; ++e) {
            const int64_t d = backward ? dim - 1 - e : e;
            dot += float(q.real((i * q.shape[1] + h) * dim + d)) *
                   float(k.real((id * page + col % page) * dim + d));
          }
          sum += std::fmax(dot, 0.0f);
        }
        EXPECT_LE(
            std::fabs(double(sum / std::sqrt(float(dim))) - o.value[size_t(i * columns + col)]),
            o.bound[size_t(i * columns + col)]);
      }
    }
}

// B13: a table in another unit than the cache.
TEST(QsaScore, ATableOfForeignIdsIsReportedWithCounts) {
  Case c = card_of("qsa.score")
               .generate(parse_coordinates("requests=2 ctx=392 ragged=0 page=2 dim=8"), 1);
  Tensor& table = c.inputs.at("page_table");
  ASSERT_EQ(table.shape, (Shape{2, 49}));
  for (int64_t i = 0; i < 98; ++i) table.set_integer(i, (i < 49 ? 147 : 343 - 49) + i);
  Tensor ten = make_tensor(TK_BF16, {10, 2, 1, 8});
  c.inputs["k_cache"] = ten;
  const std::vector<std::string> findings = card_of("qsa.score").findings(c);
  EXPECT_TRUE(has_finding(findings, "98 of 98 used page_table entries are outside [0,10)"))
      << joined(findings);
  EXPECT_TRUE(has_finding(findings, "request 1: 49")) << joined(findings);
  EXPECT_TRUE(has_finding(findings, "196 visible columns of 2 rows score -inf"))
      << joined(findings);
}

TEST(QsaScore, UnusedEntriesGiveNoWarning) {
  EXPECT_EQ(joined(card_of("qsa.score").findings(suite_case("qsa.score", "huge-unused-pages"))),
            "");
}

TEST(QsaScore, ProductsBeyondFp32AreNotJudged) {
  Case c = tiny();
  c.inputs["q"] = from_reals(TK_F32, {1e30, 0, 0, -1}, {1, 2, 2});
  c.inputs["k_cache"] = from_reals(TK_F32, {1e30, 1, 1, 1, 2, 1, 3, 1}, {1, 4, 1, 2});
  const reference::Result r = oracle_of(c);
  EXPECT_EQ(r.outputs.at("logits").judged, (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_TRUE(has_finding(r.findings, "row 0: products of query and keys are beyond fp32"));
}

TEST(QsaScore, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.score"); }
