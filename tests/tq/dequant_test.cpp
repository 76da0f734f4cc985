// SPDX-License-Identifier: Apache-2.0
#include "tq/dequant.h"

#include <cmath>
#include <cstring>

#include "harness/generate/fill.h"
#include "suite.h"

namespace tq_test {
namespace {

// One slot of these bytes, one token.
harness::Case one_slot(const std::vector<int64_t>& bytes, int64_t dim, bool fp8, int key_bits, int value_bits,
                       const std::vector<double>& centroids) {
  harness::Case c;
  c.op = "tq.dequant";
  c.inputs["kv_cache"] = harness::from_integers(TK_U8, bytes, {1, 1, 1, int64_t(bytes.size())});
  c.inputs["block_table"] = harness::from_integers(TK_I32, {0}, {1, 1});
  if (!fp8) c.inputs["centroids"] = harness::from_reals(TK_F32, centroids, {int64_t(centroids.size())});
  c.scalars = {{"key_fp8", fp8 ? "1" : "0"},
               {"mse_bits", std::to_string(key_bits)},
               {"key_packed_size", std::to_string(fp8 ? dim : (dim * key_bits + 7) / 8 + 2)},
               {"value_quant_bits", std::to_string(value_bits)},
               {"head_dim", std::to_string(dim)}};
  return c;
}
const std::vector<double> kEight{0, 1, 2, 3, 4, 5, 6, 7};

TEST(TqDequant, ReadsThreeBitCodesAsALittleEndianStream) {
  // 88 C6 FA holds 0..7; norm 1, value codes the same, scale 1, zero 0.
  const harness::Case c = one_slot({0x88, 0xc6, 0xfa, 0x00, 0x3c, 0x88, 0xc6, 0xfa, 0x00, 0x3c, 0x00, 0x00}, 8, false,
                                   3, 3, kEight);
  const reference::Result truth = oracle(c);
  EXPECT_EQ(truth.outputs.at("k").value, kEight);
  EXPECT_EQ(truth.outputs.at("v").value, kEight);
  for (double bound : truth.outputs.at("k").bound) EXPECT_EQ(bound, 0);
}

TEST(TqDequant, ReadsFourBitCodesLowNibbleFirst) {
  std::vector<double> sixteen;
  for (int i = 0; i < 16; ++i) sixteen.push_back(i);
  const reference::Result truth =
      oracle(one_slot({0x10, 0x32, 0x00, 0x3c, 0x10, 0x32, 0x00, 0x3c, 0x00, 0x00}, 4, false, 4, 4, sixteen));
  EXPECT_EQ(truth.outputs.at("k").value, (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(truth.outputs.at("v").value, (std::vector<double>{0, 1, 2, 3}));
}

TEST(TqDequant, FlavoursOfFp8AreDifferentNumbers) {
  const std::vector<int64_t> bytes{0x38, 0x7e, 0x7f, 0x80, 0, 0, 0, 0, 0, 0};
  const std::pair<const char*, std::vector<double>> flavours[] = {
      {"e4m3fn", {1, 448, NAN, -0.0}}, {"e4m3fnuz", {0.5, 224, 240, NAN}}, {"e4b15", {0.00390625, 1.75, 1.875, -0.0}}};
  for (const auto& [flavour, expected] : flavours) {
    harness::Case c = one_slot(bytes, 4, true, 0, 4, {});
    c.scalars["fp8_flavour"] = flavour;
    const auto k = oracle(c).outputs.at("k").value;
    for (size_t i = 0; i < 4; ++i) {
      if (std::isnan(expected[i])) EXPECT_TRUE(std::isnan(k[i])) << flavour << " " << i;
      else EXPECT_EQ(k[i], expected[i]) << flavour << " " << i;
      EXPECT_EQ(std::signbit(k[i]), std::signbit(expected[i])) << flavour << " " << i;
    }
  }
}

TEST(TqDequant, RoundsToFloatAndThenToHalf) {
  // norm 1 times a centroid just above the middle of two halves, by less than a float can hold: the tie goes to even.
  const double middle = 1 + 0x1p-11;
  std::vector<double> centroids(8, middle);
  harness::Case c = one_slot({0, 0, 0, 0x00, 0x3c, 0, 0, 0, 0, 0, 0, 0}, 8, false, 3, 3, centroids);
  EXPECT_EQ(oracle(c).outputs.at("k").value[0], 1.0);
  // 3 * 2049/2048 + zero: exact product, one fp32 rounding, one f16 rounding.
  c = one_slot({0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x00, 0x3c, 0x01, 0x00}, 8, false, 3, 3, kEight);
  EXPECT_EQ(oracle(c).outputs.at("v").value[0], 7.0);  // 7 + 2^-24 rounds to 7
}

TEST(TqDequant, NormCorrectionAcceptsBothNeighboursAndNoMore) {
  harness::Case c = made("tq.dequant", "batch=1 ctx=4 tokens=4");
  const harness::TensorMap right = harness::oracle_outputs(c);
  for (const int step : {-1, 1, -2, 2}) {
    harness::TensorMap moved = right;
    moved["k"] = right.at("k").packed();
    for (int64_t i = 0; i < moved["k"].count(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, moved["k"].element(i), sizeof bits);
      bits = uint16_t(bits + step);
      std::memcpy(moved["k"].element(i), &bits, sizeof bits);
    }
    EXPECT_EQ(judged(c, moved).status, std::abs(step) == 1 ? harness::Status::pass : harness::Status::fail) << step;
  }
}

TEST(TqDequant, AZeroOfTheWrongSignFails) {
  harness::Case c = one_slot({0, 0, 0, 0x00, 0x3c, 0, 0, 0, 0, 0, 0, 0}, 8, false, 3, 3, kEight);
  harness::TensorMap results = harness::oracle_outputs(c);
  EXPECT_EQ(judged(c, results).status, harness::Status::pass);
  results["v"].set_real(3, -0.0);
  const harness::Verdict verdict = judged(c, results);
  EXPECT_EQ(verdict.status, harness::Status::fail);
  EXPECT_NE(verdict.first_bad.find("token 0, dim 3 (block 0, position 0)"), std::string::npos) << verdict.first_bad;
}

TEST(TqDequant, BadBlocksAndTokensBeyondTheTableAreZeros) {
  harness::Case c = made("tq.dequant", "batch=1 ctx=16 tokens=40");
  c.inputs["block_table"].set_integer(0, 99);
  const reference::Result truth = oracle(c);
  for (const char* name : {"k", "v"})
    for (double x : truth.outputs.at(name).value) EXPECT_EQ(x, 0);
  EXPECT_TRUE(mentions(card("tq.dequant").findings(c), "used block ids outside [0,"));
}

TEST(TqDequant, ADumpSaysHeadSizeAndTokensByItsResults) {
  harness::Case c = made("tq.dequant", "batch=1 dim=72 quant=3bit_nc");
  c.scalars.erase("head_dim");
  c.expected["k"] = harness::make_tensor(TK_F16, {1, 2, 37, 72});
  card("tq.dequant").complete(c);
  EXPECT_EQ(c.scalars.at("head_dim"), "72");
  EXPECT_EQ(c.scalars.at("tokens"), "37");
}

// A random case failed: a NaN scale with the payload of the poison went through the kernel into the output.
TEST(TqDequant, AnyBytesHoldNoNaNThatLooksLikeAnUnwrittenOutput) {
  const harness::Case c =
      made("tq.dequant", "batch=2 bytes=any kv_heads=8 layout=head_major page=20 table=reversed tokens=37", 71);
  int64_t nans = 0, poison = 0;
  harness::each_slot(c.inputs.at("kv_cache"), [&](std::byte* slot, int64_t step) {
    for (int64_t i = 0; i + 1 < c.inputs.at("kv_cache").shape[3]; ++i) {
      const int x = std::to_integer<int>(slot[i * step]) | std::to_integer<int>(slot[(i + 1) * step]) << 8;
      nans += (x & 0x7c00) == 0x7c00 && (x & 0x3ff);
      poison += (x & 0x7dff) == 0x7c5a;
    }
  });
  EXPECT_GT(nans, 0);
  EXPECT_EQ(poison, 0);
}

TEST(TqDequant, SuitePassesAndItsFaultsAreNoticed) { expect_suite_judges("tq.dequant", 5); }
TEST(TqDequant, CasesAreRepeatable) { expect_repeatable("tq.dequant", "kv_cache"); }

}  // namespace
}  // namespace tq_test
