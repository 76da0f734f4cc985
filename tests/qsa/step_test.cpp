// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "harness/judge/stages.h"

using namespace check;

namespace {

// The whole chain's truth, as the results of a right step.
TensorMap right_step(const Case& c) { return right_results(c, oracle_of(c)); }

// Dense causal attention of row i over positions 0..p, in float64.
std::vector<double> dense(const Case& c, int64_t row, int64_t head) {
  const Tensor &q = c.inputs.at("attend.q"), &k = c.inputs.at("attend.k_cache"),
               &v = c.inputs.at("attend.v_cache"), &table = c.inputs.at("block_table");
  const int64_t dim = q.shape[2], kv = head / (q.shape[1] / k.shape[2]), page = k.shape[1];
  const int64_t request = c.inputs.at("token_to_req").integer(row),
                last = c.inputs.at("query_positions").integer(row);
  std::vector<double> sum(size_t(dim), 0.0);
  double z = 0;
  for (int64_t t = 0; t <= last; ++t) {
    const int64_t at =
        (table.integer(request * table.shape[1] + t / page) * page + t % page) * k.shape[2] + kv;
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d)
      dot += q.real((row * q.shape[1] + head) * dim + d) * k.real(at * dim + d);
    const double w = std::exp(dot / std::sqrt(double(dim)));
    z += w;
    for (int64_t d = 0; d < dim; ++d) sum[size_t(d)] += w * v.real(at * dim + d);
  }
  for (double& s : sum) s /= z;
  return sum;
}

}  // namespace

TEST(QsaStep, ShortContextsAreDenseCausalAttention) {
  for (const char* axes : {"batch=prefill requests=1 rows=35 heads=2 kv=1 dim=16 topk=32",
                           "batch=speculative requests=2 rows=3 ctx=35 heads=4 kv=2 dim=32 topk=32",
                           "requests=3 ctx=19 heads=2 kv=1 dim=16 topk=16"}) {
    const Case c = card_of("qsa.step").generate(parse_coordinates(axes), 2);
    const reference::Output o = oracle_of(c).outputs.at("attend.output");
    for (int64_t row = 0; row < o.shape[0]; ++row)
      for (int64_t head = 0; head < o.shape[1]; ++head) {
        const std::vector<double> due = dense(c, row, head);
        for (int64_t d = 0; d < o.shape[2]; ++d)
          EXPECT_NEAR(o.value[size_t((row * o.shape[1] + head) * o.shape[2] + d)], due[size_t(d)],
                      1e-12);
      }
  }
}

TEST(QsaStep, PaddingRowsGiveNothing) {  // B04
  const Case c = suite_case("qsa.step", "mixed-padding");
  const reference::Result r = oracle_of(c);
  const int64_t rows = c.inputs.at("token_to_req").count(),
                width = r.outputs.at("expand.indices").shape[1];
  for (int64_t row = rows - 2; row < rows; ++row) {
    EXPECT_EQ(r.outputs.at("score.visible_blocks").integer[size_t(row)], 0);
    for (int64_t j = 0; j < width; ++j)
      EXPECT_EQ(r.outputs.at("expand.indices").integer[size_t(row * width + j)], -1);
    const reference::Output& o = r.outputs.at("attend.output");
    const int64_t elements = o.shape[1] * o.shape[2];
    for (int64_t j = 0; j < elements; ++j) EXPECT_EQ(o.value[size_t(row * elements + j)], 0.0);
  }
}

TEST(QsaStep, TheFirstWrongStageIsNamed) {
  const Case c = suite_case("qsa.step", "decode");
  const Card& card = card_of("qsa.step");
  for (const Fault& f : card.faults()) {
    TensorMap results;
    for (const auto& [name, t] : right_step(c)) results.emplace(name, t.packed());
    if (!f.plant(c, results)) continue;
    const Verdict v = judge(c, results);
    const std::string stage(f.name.substr(0, f.name.find('.')));
    EXPECT_EQ(name_of(v.status), "fail") << f.name;
    EXPECT_TRUE(v.reason.starts_with(stage + ": ")) << f.name << ": " << v.reason;
  }
}

TEST(QsaStep, AStageThatReadSomethingElseIsABrokenLink) {
  Case c = suite_case("qsa.step", "decode");
  const TensorMap results = right_step(c);
  c.inputs["attend.logical_indices"] = results.at("expand.indices");
  EXPECT_EQ(name_of(judge(c, results).status), "pass");
  Tensor stale = results.at("expand.indices").packed();
  stale.set_integer(0, stale.integer(0) + 1);
  c.inputs["attend.logical_indices"] = stale;
  const Verdict v = judge_stages(c, results);
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(v.reason.find("link: attend.logical_indices"), std::string::npos) << v.reason;
}

TEST(QsaStep, AnySubsetOfStagesIsJudged) {
  const Case c = suite_case("qsa.step", "decode");
  const TensorMap all = right_step(c);
  TensorMap some{{"store.cache", all.at("store.cache")}, {"score.logits", all.at("score.logits")}};
  EXPECT_EQ(name_of(judge(c, some).status), "pass");
}

TEST(QsaStep, WithoutRingSlotsTheRingStays) {
  const Case c = suite_case("qsa.step", "ratio-2-ring-left");
  TensorMap results = right_step(c);
  results["compress.compressor_state_cache"] =
      c.inputs.at("compress.compressor_state_cache").packed();
  EXPECT_EQ(name_of(judge(c, results).status), "pass");
  results.at("compress.compressor_state_cache").set_real(0, 1);
  EXPECT_NE(judge(c, results).reason.find("ring: compressor_state_cache is written"),
            std::string::npos);
}

TEST(QsaStep, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.step"); }
