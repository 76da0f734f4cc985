// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// D = 8, one KV head, keys and values by (page, slot); two pages of 4.
struct Parts {
  Tensor q = make_tensor(TK_BF16, {1, 2, 8}), k = make_tensor(TK_BF16, {2, 4, 1, 8}),
         v = make_tensor(TK_BF16, {2, 4, 1, 8});
  std::vector<int64_t> tokens;
  std::vector<int64_t> table{1, 0};
};
Case case_of(const Parts& p) {
  return make_case("qsa.attend", {{"q", p.q},
                                  {"k_cache", p.k},
                                  {"v_cache", p.v},
                                  {"logical_indices", ids(p.tokens, {1, int64_t(p.tokens.size())})},
                                  {"block_table", ids(p.table, {1, int64_t(p.table.size())})},
                                  {"token_to_req", ids({0})}});
}
// Keys 0 (equal weights), the value of token t is t + 1 in every dim: token t lies on page table[t
// / 4].
Parts equal_weights() {
  Parts p;
  for (int64_t t = 0; t < 8; ++t)
    for (int64_t d = 0; d < 8; ++d)
      p.v.set_real((p.table[size_t(t / 4)] * 4 + t % 4) * 8 + d, double(t + 1));
  return p;
}
double output_of(const Case& c, size_t i = 0) { return oracle_of(c).outputs.at("output").value[i]; }

// The output of a bf16 flash kernel that walks tiles of `tile` tokens in fp32: bf16 weights against
// a running maximum.
std::vector<double> tiled(const Case& c, int64_t row, int64_t head, int64_t tile) {
  const Tensor &q = c.inputs.at("q"), &k = c.inputs.at("k_cache"), &v = c.inputs.at("v_cache"),
               &table = c.inputs.at("block_table"), &indices = c.inputs.at("logical_indices");
  const int64_t dim = q.shape[2], kv = head / (q.shape[1] / k.shape[2]), page = k.shape[1];
  const int64_t request = c.inputs.at("token_to_req").integer(row);
  Tensor weight = make_tensor(q.dtype, {1});
  float top = -INFINITY, sum = 0;
  std::vector<float> acc(size_t(dim), 0.0f), s, w;
  std::vector<int64_t> rows;
  const auto flush = [&] {
    if (rows.empty()) return;
    float next = top;
    for (const float x : s) next = std::fmax(next, x);
    const float alpha = std::exp2(top - next);
    for (float& a : acc) a *= alpha;
    sum *= alpha;
    for (size_t t = 0; t < rows.size(); ++t) {
      const float p = std::exp2(s[t] - next);
      sum += p;
      weight.set_real(0, p);
      for (int64_t d = 0; d < dim; ++d)
        acc[size_t(d)] +=
            float(weight.real(0)) * float(v.real((rows[t] * v.shape[2] + kv) * dim + d));
    }
    top = next;
    s.clear();
    rows.clear();
  };
  for (int64_t col = 0; col < indices.shape[1]; ++col) {
    const int64_t t = indices.integer(row * indices.shape[1] + col);
    if (t < 0) continue;
    const int64_t at = table.integer(request * table.shape[1] + t / page) * page + t % page;
    float dot = 0;
    for (int64_t d = 0; d < dim; ++d)
      dot += float(q.real((row * q.shape[1] + head) * dim + d)) *
             float(k.real((at * k.shape[2] + kv) * dim + d));
    s.push_back(dot * float(1.4426950408889634 / std::sqrt(double(dim))));
    rows.push_back(at);
    if (int64_t(rows.size()) == tile) flush();
  }
  flush();
  std::vector<double> out;
  for (const float a : acc) {
    weight.set_real(0, a / sum);
    out.push_back(weight.real(0));
  }
  return out;
}

}  // namespace

TEST(QsaAttend, OneUlpBesideAPowerOfTwoIsRight) {
  Parts p = equal_weights();
  for (int64_t i = 0; i < p.v.count(); ++i) p.v.set_real(i, i / 8 == 4 ? 0.99609375 : 1.0);
  p.tokens = {0, 1, 2};  // token 0 lies in row 4: mean 0.9987, which rounds to 1
  const Case c = case_of(p);
  TensorMap results = right_results(c, oracle_of(c));
  for (const auto& [value, verdict] : {std::pair{1.0078125, "pass"}, std::pair{0.99609375, "pass"},
                                       std::pair{1.0234375, "fail"}}) {
    results.at("output").set_real(0, value);
    EXPECT_EQ(name_of(judge(c, results).status), verdict) << value;
  }
}

TEST(QsaAttend, EqualWeightsGiveTheMean) {
  Parts p = equal_weights();
  p.tokens = {0, 3, 4, 7};
  EXPECT_DOUBLE_EQ(output_of(case_of(p)), (1 + 4 + 5 + 8) / 4.0);
  EXPECT_DOUBLE_EQ(oracle_of(case_of(p)).outputs.at("lse").value[0],
                   2.0);  // log2 of 4 tokens of score 0
}

TEST(QsaAttend, ATokenListedTwiceCountsTwice) {
  Parts p = equal_weights();
  p.tokens = {0, 0, 3};
  EXPECT_DOUBLE_EQ(output_of(case_of(p)), 2.0);
}

TEST(QsaAttend, TheScaleIsOneOverTheRootOfD) {
  Parts p = equal_weights();
  for (int64_t h = 0; h < 2; ++h) p.q.set_real(h * 8, h ? 0.0 : 8.0);
  p.k.set_real(4 * 8, 2.0);  // token 0 is on page 1
  p.tokens = {0, 1};
  const double w = std::exp(16 / std::sqrt(8.0));
  EXPECT_NEAR(output_of(case_of(p), 0), (w + 2) / (w + 1), 1e-12);
  EXPECT_DOUBLE_EQ(output_of(case_of(p), 8), 1.5);
}

TEST(QsaAttend, HolesDeadPagesAndTokensBeyondTheTableAreMasked) {
  Parts p = equal_weights();
  p.tokens = {-1, 2, -1, 9999, 1, -7};
  EXPECT_DOUBLE_EQ(output_of(case_of(p)), 2.5);
  p.table = {1, 2};  // the second page is none
  p.tokens = {2, 5};
  EXPECT_DOUBLE_EQ(output_of(case_of(p)), 3.0);
  const std::vector<std::string> findings = card_of("qsa.attend").findings(case_of(p));
  EXPECT_TRUE(has_finding(
      findings, "1 listed tokens are on a page outside [0,2) (first: row 0, token 5, page 2)"))
      << joined(findings);
}

TEST(QsaAttend, NothingLiveIsZeroAndMinusInf) {
  Parts p = equal_weights();
  p.tokens = {-1, 100};
  const reference::Result r = oracle_of(case_of(p));
  for (const double x : r.outputs.at("output").value) EXPECT_EQ(x, 0);
  for (const double x : r.outputs.at("output").bound) EXPECT_EQ(x, 0);
  EXPECT_EQ(r.outputs.at("lse").value[0], -INFINITY);
}

// B16: a masked tile first, an empty row, holes, tokens beyond the table; page 0 is full of NaN and
// inf.
TEST(QsaAttend, EmptyTilesAndRowsBesideAPoisonedPage) {
  const int64_t dim = 128, width = 256;
  Tensor k = make_tensor(TK_BF16, {4, 16, 1, dim}), v = make_tensor(TK_BF16, {4, 16, 1, dim}),
         q = make_tensor(TK_BF16, {4, 2, dim});
  fill_normal(k, Random(1, "k"));
  fill_normal(v, Random(1, "v"));
  fill_normal(q, Random(1, "q"));
  for (int64_t i = 0; i < 16 * dim; ++i) {
    k.set_real(i, i % 2 ? NAN : INFINITY);
    v.set_real(i, i % 2 ? INFINITY : NAN);
  }
  std::vector<int64_t> tokens(size_t(4 * width), -1);
  for (int64_t t = 0; t < 10; ++t) tokens[size_t(64 + t)] = 3 * t;
  for (int64_t t = 0; t < 40; ++t) tokens[size_t(2 * width + 5 * t)] = t;
  for (int64_t t = 0; t < 40; ++t) tokens[size_t(3 * width + t)] = 48 + t;
  const Case c = make_case("qsa.attend", {{"q", q},
                                          {"k_cache", k},
                                          {"v_cache", v},
                                          {"logical_indices", ids(tokens, {4, width})},
                                          {"block_table", ids({2, 1, 3}, {1, 3})},
                                          {"token_to_req", ids({0, 0, 0, 0})}});
  const reference::Result r = oracle_of(c);
  EXPECT_TRUE(r.findings.empty()) << joined(r.findings);
  EXPECT_TRUE(r.outputs.at("output").judged.empty());
  for (size_t i = 0; i < r.outputs.at("output").value.size(); ++i) {
    EXPECT_TRUE(std::isfinite(r.outputs.at("output").value[i]));
    const size_t row = i / (2 * dim);
    if (row == 1 || row == 3) EXPECT_EQ(r.outputs.at("output").value[i], 0);
  }
}

TEST(QsaAttend, ANanInALiveKeyIsNamedAndItsHeadsNotJudged) {
  const Case c = suite_case("qsa.attend", "nan-key");
  const reference::Result r = oracle_of(c);
  EXPECT_TRUE(has_finding(r.findings, "row 0, head 0: the key of token")) << joined(r.findings);
  EXPECT_TRUE(has_finding(r.findings, "KV head 0, dim 1) is NaN; not judged"))
      << joined(r.findings);
  const std::vector<uint8_t>& judged = r.outputs.at("output").judged;
  EXPECT_EQ(judged[0], 0);  // heads 0 and 1 read KV head 0
  EXPECT_EQ(judged[16], 0);
  EXPECT_EQ(judged[2 * 16], 1);  // head 2 reads the other
  EXPECT_EQ(judged[4 * 16], 1);  // the other row
}

TEST(QsaAttend, TheBoundHoldsForBf16WeightsInTilesOfAnyWidth) {
  for (const char* name : {"decode", "tp4-group-6-speculative", "peaked", "page-1600-full-width",
                           "uniform-weights", "f16"}) {
    const Case c = suite_case("qsa.attend", name, 3);
    const reference::Result r = oracle_of(c);
    const reference::Output& o = r.outputs.at("output");
    const int64_t heads = o.shape[1], dim = o.shape[2];
    for (int64_t row = 0; row < o.shape[0]; ++row)
      for (int64_t head = 0; head < heads; ++head)
        for (const int64_t tile : {16, 64, 1 << 20}) {
          const std::vector<double> got = tiled(c, row, head, tile);
          for (int64_t d = 0; d < dim; ++d) {
            const size_t i = size_t((row * heads + head) * dim + d);
            ASSERT_LE(std::fabs(got[size_t(d)] - o.value[i]), o.bound[i])
                << name << " tile " << tile;
          }
        }
  }
}

// Correlated roundings: all weights in one rounding cell, values of one sign.
TEST(QsaAttend, TheBoundHoldsWhereAllRoundingsGoTheSameWay) {
  Case c = suite_case("qsa.attend", "page-1600-full-width", 5);
  Tensor q = c.inputs.at("q").packed(), v = c.inputs.at("v_cache");
  for (int64_t i = 0; i < q.count(); ++i) q.set_real(i, q.real(i) * 5e-4);
  for (int64_t i = 0; i < v.count(); ++i) v.set_real(i, std::fabs(v.real(i)) + 1);
  c.inputs["q"] = q;
  const reference::Result r = oracle_of(c);
  const reference::Output& o = r.outputs.at("output");
  for (int64_t head = 0; head < o.shape[1]; ++head) {
    const std::vector<double> got = tiled(c, 0, head, 64);
    for (int64_t d = 0; d < o.shape[2]; ++d) {
      const size_t i = size_t(head * o.shape[2] + d);
      ASSERT_LE(std::fabs(got[size_t(d)] - o.value[i]), o.bound[i]);
    }
  }
}

TEST(QsaAttend, CostCountsUniqueTokensForBytesAndAttendedOnesForFlops) {  // B44
  Case c =
      card_of("qsa.attend")
          .generate(parse_coordinates(
                        "requests=1 ctx=4099 ragged=0 width=2051 heads=24 kv=2 dim=256 page=1600"),
                    1);
  Tensor indices = c.inputs.at("logical_indices");
  int64_t live = 0;
  for (int64_t i = 0; i < indices.count(); ++i)
    if (indices.integer(i) >= 0 && ++live > 2048) indices.set_integer(i, -1);
  const Cost cost = card_of("qsa.attend").cost(c);
  EXPECT_EQ(cost.bytes, 4194304.0 + 2 * 24 * 256 * 2 + 2051 * 4);
  EXPECT_EQ(cost.flops, 4.0 * 2048 * 24 * 256);
}

TEST(QsaAttend, ALostTokenOf2051IsSeenInNearlyEveryPlace) {
  const Case c = suite_case("qsa.attend", "page-1600-full-width", 9);
  const reference::Result truth = oracle_of(c);
  int64_t seen = 0, tried = 0;
  for (int64_t column = 0; column < 2051; column += 97) {
    Case changed = c;
    Tensor indices = c.inputs.at("logical_indices").packed();
    indices.set_integer(column, -1);
    changed.inputs["logical_indices"] = indices;
    const TensorMap lost = right_results(changed, oracle_of(changed));
    ++tried;
    seen += card_of("qsa.attend").judge(c, truth, lost).status == Status::fail;
  }
  EXPECT_GE(seen * 10, tried * 9) << seen << " of " << tried;
}

TEST(QsaAttend, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.attend"); }
