// SPDX-License-Identifier: Apache-2.0
#include "tq/decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/generate/fill.h"
#include "harness/generate/turboquant.h"
#include "suite.h"

namespace tq_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One head of D = 2 with 4-bit centroid keys 0..15, two tokens: keys 2*(1,0) and 2*(0,3), values (1,2) and (5,7).
harness::Case two_tokens() {
  harness::Case c;
  c.op = "tq.decode";
  const std::vector<int64_t> slots{0x01, 0x00, 0x40, 0x21, 0x00, 0x3c, 0x00, 0x00,
                                   0x30, 0x00, 0x40, 0x75, 0x00, 0x3c, 0x00, 0x00};
  c.inputs["kv_cache"] = harness::from_integers(TK_U8, slots, {1, 2, 1, 8});
  c.inputs["block_table"] = harness::from_integers(TK_I32, {0}, {1, 1});
  c.inputs["seq_lens"] = harness::from_integers(TK_I32, {2});
  c.inputs["query"] = harness::from_reals(TK_F32, {0.5, 0.25}, {1, 1, 2});
  c.inputs["Pi"] = harness::from_reals(TK_F32, {0, -1, 1, 0}, {2, 2});
  std::vector<double> centroids;
  for (int i = 0; i < 16; ++i) centroids.push_back(i);
  c.inputs["centroids"] = harness::from_reals(TK_F32, centroids, {16});
  c.scalars = {{"scale", "0.5"}, {"mse_bits", "4"}, {"key_packed_size", "3"}, {"value_quant_bits", "4"}};
  return c;
}

TEST(TqDecode, IsASoftmaxInBaseEOverRotatedQueriesAndUnrotatedValues) {
  const reference::Result truth = oracle(two_tokens());
  // q_rot = (-0.25, 0.5): scores 2*(-0.25)*0.5 and 2*(3*0.5)*0.5.
  const double a = std::exp(-0.25), b = std::exp(1.5);
  EXPECT_NEAR(truth.outputs.at("lse").value[0], std::log(a + b), 1e-14);
  EXPECT_NEAR(truth.outputs.at("output").value[0], (a + 5 * b) / (a + b), 1e-14);
  EXPECT_NEAR(truth.outputs.at("output").value[1], (2 * a + 7 * b) / (a + b), 1e-14);
}

TEST(TqDecode, NormCorrectionDividesByTheCentroidVectorsOwnNorm) {
  harness::Case c = two_tokens();
  c.scalars["norm_correction"] = "true";
  const double a = std::exp(-0.25), b = std::exp(0.5);
  EXPECT_NEAR(oracle(c).outputs.at("lse").value[0], std::log(a + b), 1e-14);
}

TEST(TqDecode, ScalarsAreCheckedBeforeTheyAreAdded) {
  const auto refused = [](const char* scalar, const char* text) {
    harness::Case c = two_tokens();
    c.scalars[scalar] = text;
    const harness::HostCall call(c);
    try {
      toolkit::Args(card(c.op).contract(), call.call()).check(false);
    } catch (const toolkit::Violation& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("key_packed_size", "9223372036854775807"),
            "tq.decode: key_packed_size: expected 3 (D = 2) to 8 bytes, got 9223372036854775807");
  EXPECT_EQ(refused("norm_correction", "2"),
            "tq.decode: norm_correction: expected 0, 1, true or false, got '2'");
  EXPECT_EQ(refused("scale", " 1"), "tq.decode: scale: expected a number, got ' 1'");
  EXPECT_EQ(refused("num_kv_splits", "true"),
            "tq.decode: num_kv_splits: expected an integer, got 'true'");
}

TEST(TqDecode, ScaleIsRoundedToFloat) {
  harness::Case c = two_tokens();
  c.scalars["scale"] = "0.1";
  const double scale = double(0.1f);
  EXPECT_NEAR(oracle(c).outputs.at("lse").value[0], std::log(std::exp(-0.5 * scale) + std::exp(3 * scale)), 1e-15);
}

TEST(TqDecode, EmptySequencesGiveZeroAndANanThereFailsByName) {
  const harness::Case c = made("tq.decode", "lens=5,33,1,0 heads=8 kv_heads=2 dim=128");
  harness::TensorMap results = harness::oracle_outputs(c);
  EXPECT_EQ(results.at("lse").real(3 * 8), -kInf);
  for (int64_t i = 3 * 8 * 128; i < 4 * 8 * 128; ++i) results["output"].set_real(i, NAN);
  const harness::Verdict verdict = judged(c, results);
  EXPECT_EQ(verdict.status, harness::Status::fail);
  EXPECT_NE(verdict.first_bad.find("output: batch 3, head 0, dim 0"), std::string::npos) << verdict.first_bad;
  EXPECT_EQ(verdict.nonfinite, 1024);
  EXPECT_EQ(verdict.mismatches, 1024);
}

TEST(TqDecode, NegativeLengthsAreEmptyAndReported) {
  const harness::Case c = made("tq.decode", "hostile=negative_seq");
  EXPECT_EQ(oracle(c).outputs.at("lse").value[0], -kInf);
  EXPECT_TRUE(mentions(card("tq.decode").findings(c), "batch 0: seq_lens -3 is below 0"));
}

TEST(TqDecode, TheOrderOfPhysicalBlocksAndTheLayoutDoNotMatter) {
  const reference::Result shuffled = oracle(made("tq.decode", ""));
  for (const char* axes : {"table=identity", "table=reversed", "layout=head_major", "layout=padded slot_pad=2", "splits=1"}) {
    const reference::Result other = oracle(made("tq.decode", axes));
    EXPECT_EQ(other.outputs.at("output").value, shuffled.outputs.at("output").value) << axes;
    EXPECT_EQ(other.outputs.at("lse").bound, shuffled.outputs.at("lse").bound) << axes;
  }
}

TEST(TqDecode, WhatStandsBehindASequenceIsNeverRead) {
  harness::Case c = made("tq.decode", "lens=37,5");
  const reference::Result truth = oracle(c);
  harness::Tensor& table = c.inputs["block_table"];
  for (const int64_t fill : {int64_t{-7}, int64_t{0}}) {
    table.set_integer(3, fill);
    table.set_integer(5, fill);
    EXPECT_EQ(oracle(c).outputs.at("output").value, truth.outputs.at("output").value);
    EXPECT_TRUE(card("tq.decode").findings(c).empty());
  }
}

TEST(TqDecode, ABadBlockMasksItsTokensAndIsReported) {
  harness::Case c = made("tq.decode", "lens=32 batch=1");
  harness::Case shorter = c;
  shorter.inputs["seq_lens"] = harness::from_integers(TK_I32, {16});
  c.inputs["block_table"].set_integer(1, c.inputs["kv_cache"].shape[0]);
  EXPECT_EQ(oracle(c).outputs.at("output").value, oracle(shorter).outputs.at("output").value);
  EXPECT_TRUE(mentions(card("tq.decode").findings(c), "1 used block ids outside"));
}

TEST(TqDecode, LengthsBeyondTheTableAreMaskedAndReported) {
  EXPECT_TRUE(mentions(card("tq.decode").findings(made("tq.decode", "hostile=long_seq")), "is beyond the table's"));
}

TEST(TqDecode, NanScoresAreNamedAndOnlyTheirHeadsAreNotJudged) {
  for (const char* axes : {"hostile=nan_key", "hostile=nan_key quant=k8v4", "hostile=nan_key quant=k8v4 flavour=e4m3fnuz"}) {
    const reference::Result truth = oracle(made("tq.decode", axes));
    EXPECT_TRUE(mentions(truth.findings, "batch 0, head 0, token 24: the score is NaN")) << axes;
    const auto& judged = truth.outputs.at("lse").judged;  // KV head 0 of sequence 0 serves two query heads
    EXPECT_EQ(std::count(judged.begin(), judged.end(), 0), 2) << axes;
  }
}

TEST(TqDecode, NanValuesSpoilTheOutputButNotTheLse) {
  const reference::Result truth = oracle(made("tq.decode", "hostile=nan_value"));
  EXPECT_TRUE(mentions(truth.findings, "batch 0, head 1: a value of a live token is NaN or inf"));
  const auto& lse = truth.outputs.at("lse").judged;
  EXPECT_EQ(std::count(lse.begin(), lse.end(), 0), 0);
  const auto& output = truth.outputs.at("output").judged;
  EXPECT_EQ(std::count(output.begin(), output.end(), 0), 2 * 64);
}

TEST(TqDecode, OneUlpPassesAndTwoDoNot) {
  const harness::Case c = made("tq.decode", "quant=k8v4 dim=128 batch=1");
  const harness::TensorMap right = harness::oracle_outputs(c);
  for (const int step : {1, -1, 2}) {
    harness::TensorMap moved{{"output", right.at("output").packed()}};
    for (int64_t i = 0; i < moved["output"].count(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, moved["output"].element(i), sizeof bits);
      bits = uint16_t(bits + step);
      std::memcpy(moved["output"].element(i), &bits, sizeof bits);
    }
    EXPECT_EQ(judged(c, moved).status, step == 2 ? harness::Status::fail : harness::Status::pass) << step;
  }
}

TEST(TqDecode, AResultThatWasNeverWrittenIsCalledSo) {
  const harness::Case c = made("tq.decode", "batch=1");
  const harness::TensorMap zeros{{"output", harness::make_tensor(TK_F16, c.inputs.at("query").shape)}};
  const harness::Verdict verdict = judged(c, zeros);
  EXPECT_NE(verdict.reason.find("output norm 0"), std::string::npos) << verdict.reason;
}

TEST(TqDecode, PiTHasToBeTheTransposeOfPi) {
  harness::Case c = made("tq.decode", "pit=1");
  c.inputs["PiT"] = c.inputs["Pi"];
  try {
    card("tq.decode").check_data(c);
    FAIL() << "accepted";
  } catch (const toolkit::Violation& v) {
    EXPECT_EQ(v.name, "PiT");
  }
}

TEST(TqDecode, CacheTrafficIsCountedByLiveSlots) {
  const auto cache_bytes = [](const char* axes) {
    harness::Case c = made("tq.decode", axes);
    const double all = card("tq.decode").cost(c).bytes;
    for (int64_t b = 0; b < c.inputs["seq_lens"].count(); ++b) c.inputs["seq_lens"].set_integer(b, 0);
    return all - card("tq.decode").cost(c).bytes;
  };
  EXPECT_EQ(cache_bytes("dim=128 kv_heads=8 heads=8 lens=1000"), 1072000);
  EXPECT_EQ(cache_bytes("dim=128 kv_heads=8 heads=32 lens=1000,1000"), 2144000);
  EXPECT_EQ(cache_bytes("dim=128 kv_heads=8 heads=16 lens=1000,500"), 1608000);
}

TEST(TqDecode, SuitePassesAndItsFaultsAreNoticed) { expect_suite_judges("tq.decode", 6); }
TEST(TqDecode, CasesAreRepeatable) { expect_repeatable("tq.decode", "kv_cache"); }

}  // namespace
}  // namespace tq_test
