// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "harness/generate/turboquant.h"
#include "suite.h"

namespace tq_test {
namespace {

using harness::tq_preset;

TEST(TqInputs, SlotsHaveTheSizesOfTheServingCode) {
  const auto slots = [](int64_t dim) {
    std::vector<int64_t> sizes;
    for (const char* quant : {"k8v4", "4bit_nc", "k3v4_nc", "3bit_nc"})
      sizes.push_back(harness::tq_slot_bytes(tq_preset(quant), dim));
    return sizes;
  };
  EXPECT_EQ(slots(64), (std::vector<int64_t>{100, 70, 62, 54}));
  EXPECT_EQ(slots(80), (std::vector<int64_t>{124, 86, 76, 66}));
  EXPECT_EQ(slots(96), (std::vector<int64_t>{148, 102, 90, 78}));
  EXPECT_EQ(slots(128), (std::vector<int64_t>{196, 134, 118, 102}));
  EXPECT_EQ(slots(256), (std::vector<int64_t>{388, 262, 230, 198}));
  EXPECT_EQ(harness::tq_used_bytes(tq_preset("k3v4_nc"), 72), 69);
  EXPECT_EQ(harness::tq_slot_bytes(tq_preset("k3v4_nc"), 72), 70);
  EXPECT_EQ(harness::tq_slot_bytes(tq_preset("k3v4_nc"), 24), 28);
}

void expect_upper_half(int bits, int64_t dim, const std::vector<float>& expected) {
  const std::vector<float> all = harness::tq_centroids(bits, dim);
  ASSERT_EQ(all.size(), 2 * expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(all[expected.size() + i], expected[i]) << bits << " bits, D=" << dim << ", " << i;
    EXPECT_EQ(all[expected.size() - 1 - i], -expected[i]) << bits << " bits, D=" << dim << ", " << i;
  }
}

TEST(TqInputs, CentroidsAreTheServingCodesToTheLastBit) {
  expect_upper_half(3, 128, {0.021653695f, 0.0667902604f, 0.118721463f, 0.190065846f});
  expect_upper_half(4, 128, {0.011351509f, 0.0343068577f, 0.0580605306f, 0.0833014399f, 0.111038528f, 0.143001899f,
                             0.182826623f, 0.241381705f});
  for (const int64_t dim : {64, 80, 96, 256}) {
    const std::vector<float> three = harness::tq_centroids(3, dim), four = harness::tq_centroids(4, dim);
    const double root = std::sqrt(double(dim));
    const double known3[] = {0.244984, 0.755646, 1.343180, 2.150350};
    const double known4[] = {0.128428, 0.388138, 0.656880, 0.942448, 1.256258, 1.617882, 2.068447, 2.730922};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(three[4 + i] * root, known3[i], 1.5e-6) << dim;
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(four[8 + i] * root, known4[i], 1.5e-6) << dim;
  }
}

TEST(TqInputs, RotationsAreOrthogonalForEveryHeadSize) {
  for (const int64_t dim : {64, 72, 80, 96, 100, 112, 128, 256})
    for (const char* kind : {"orthogonal", "hadamard", "identity"}) {
      if (std::string(kind) == "hadamard" && (dim & (dim - 1))) {
        EXPECT_THROW(harness::tq_rotation(kind, dim, harness::Random(3, "Pi")), std::invalid_argument);
        continue;
      }
      harness::Case c;
      c.inputs["Pi"] = harness::tq_rotation(kind, dim, harness::Random(3, "Pi"));
      EXPECT_NO_THROW(harness::check_rotation(c, card("tq.rotate").contract())) << kind << " " << dim;
      EXPECT_EQ(harness::transpose_rotation(c), std::string(kind) == "orthogonal");  // false: it is symmetric
    }
}

TEST(TqInputs, UnusedSlotsStayPoisonedAndTokensDoNotDependOnTheirPage) {
  const harness::Case a = made("tq.decode", "lens=20,3"), b = made("tq.decode", "lens=20,3 table=identity");
  const harness::Tensor &cache = a.inputs.at("kv_cache"), &other = b.inputs.at("kv_cache");
  const int64_t bytes = cache.shape[2] * cache.shape[3];
  int64_t poisoned = 0;
  for (int64_t slot = 0; slot < cache.shape[0] * cache.shape[1]; ++slot) {
    bool all = true;
    for (int64_t i = 0; i < bytes; ++i) all = all && cache.integer(slot * bytes + i) == 0xff;
    poisoned += all;
  }
  EXPECT_EQ(poisoned, cache.shape[0] * cache.shape[1] - 23);
  const auto first_of = [&](const harness::Case& c, const harness::Tensor& t, int64_t sequence) {
    const int64_t block = c.inputs.at("block_table").integer(sequence * c.inputs.at("block_table").shape[1]);
    std::vector<int64_t> out;
    for (int64_t i = 0; i < 3 * bytes; ++i) out.push_back(t.integer(block * t.shape[1] * bytes + i));
    return out;
  };
  for (int64_t sequence : {0, 1}) EXPECT_EQ(first_of(a, cache, sequence), first_of(b, other, sequence));
}

TEST(TqInputs, SharedTablesHaveRowStrideZero) {
  const harness::Tensor table = made("tq.decode", "table=stride0 lens=46,47,48").inputs.at("block_table");
  EXPECT_EQ(table.shape, (toolkit::Shape{3, 4}));
  EXPECT_EQ(table.strides[0], 0);
}

TEST(TqInputs, WrongWordsAreRefusedWithTheRightOnes) {
  try {
    card("tq.decode").generate({{"quant", "5bit"}}, 1);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("k3v4_nc"), std::string::npos) << e.what();
  }
  EXPECT_THROW(card("tq.decode").generate({{"heads", "5"}}, 1), std::invalid_argument);
  EXPECT_THROW(card("tq.encode").generate({{"tokens", "1000"}}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace tq_test
