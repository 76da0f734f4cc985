// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace harness {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

double decode(tk_dtype d, uint64_t bits) {
  return decode_real(d, reinterpret_cast<const std::byte*>(&bits));
}
uint64_t encode(tk_dtype d, double v) {
  uint64_t bits = 0;
  encode_real(d, v, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

TEST(Numbers, DecodesTheCornersOfEachFp8Flavour) {
  EXPECT_EQ(decode(TK_E4M3FN, 0x7e), 448);
  EXPECT_TRUE(std::isnan(decode(TK_E4M3FN, 0x7f)));
  EXPECT_TRUE(std::isnan(decode(TK_E4M3FN, 0xff)));
  EXPECT_EQ(decode(TK_E4M3FN, 0x01), 0x1p-9);
  EXPECT_EQ(decode(TK_E4M3FNUZ, 0x7f), 240);
  EXPECT_TRUE(std::isnan(decode(TK_E4M3FNUZ, 0x80)));
  EXPECT_EQ(decode(TK_E4M3FNUZ, 0x01), 0x1p-10);
  EXPECT_EQ(decode(TK_E4B15, 0x7f), 1.875);
  EXPECT_EQ(decode(TK_E4B15, 0xff), -1.875);
  EXPECT_EQ(decode(TK_E5M2, 0x7b), 57344);
  EXPECT_EQ(decode(TK_E5M2, 0xfc), -kInf);
  EXPECT_TRUE(std::isnan(decode(TK_E5M2, 0x7d)));
  EXPECT_EQ(decode(TK_E5M2, 0x01), 0x1p-16);
}

TEST(Numbers, EverySmallFloatSurvivesARoundTrip) {
  for (const tk_dtype d : {TK_F16, TK_BF16, TK_E4M3FN, TK_E4M3FNUZ, TK_E4B15, TK_E5M2}) {
    const uint64_t codes = toolkit::bytes_of(d) == 2 ? 65536 : 256;
    for (uint64_t c = 0; c < codes; ++c) {
      const double v = decode(d, c);
      if (std::isnan(v))
        EXPECT_TRUE(std::isnan(decode(d, encode(d, v)))) << toolkit::name_of(d) << " " << c;
      else
        EXPECT_EQ(encode(d, v), c) << toolkit::name_of(d);
    }
  }
}

TEST(Numbers, HalvesAgreeWithTheCompilersOwnConversion) {
  for (const double v : {1.0, -0.1, 65504.0, 65519.9, 65520.0, 1e-8, 6e-8, 5.960464477539063e-08,
                         0.333333, -2049.0}) {
    const _Float16 h = static_cast<_Float16>(v);
    uint16_t bits;
    std::memcpy(&bits, &h, 2);
    EXPECT_EQ(encode(TK_F16, v), bits) << v;
  }
}

TEST(Numbers, RoundToNearestEvenOnce) {
  EXPECT_EQ(encode(TK_BF16, 1 + 0x1p-8), 0x3f80u);  // a tie goes to even
  EXPECT_EQ(encode(TK_BF16, 1 + 3 * 0x1p-8), 0x3f82u);
  EXPECT_EQ(encode(TK_BF16, 1 + 0x1p-8 + 0x1p-40),
            0x3f81u);                      // lost where rounded through f32 first
  EXPECT_EQ(encode(TK_F16, 0x1p-25), 0u);  // half of the smallest subnormal: even
  EXPECT_EQ(encode(TK_F16, 0x1p-25 * 1.0001), 1u);
}

TEST(Numbers, OverflowIsInfinityInHalvesAndSaturatesInFp8) {
  EXPECT_EQ(decode(TK_F16, encode(TK_F16, 1e9)), kInf);
  EXPECT_EQ(decode(TK_BF16, encode(TK_BF16, -1e300)), -kInf);
  EXPECT_EQ(decode(TK_E4M3FN, encode(TK_E4M3FN, 1e9)), 448);
  EXPECT_EQ(decode(TK_E4M3FN, encode(TK_E4M3FN, -kInf)), -448);
  EXPECT_EQ(decode(TK_E4M3FNUZ, encode(TK_E4M3FNUZ, 1e9)), 240);
  EXPECT_EQ(encode(TK_E4M3FNUZ, -1e-30), 0u);  // -0 would be the NaN
  EXPECT_EQ(decode(TK_E5M2, encode(TK_E5M2, 1e9)), 57344);
  EXPECT_TRUE(std::isnan(decode(TK_E4M3FN, encode(TK_E4M3FN, kNan))));
}

TEST(Numbers, IntegersSaturateAndRound) {
  EXPECT_EQ(decode(TK_I8, encode(TK_I8, 300)), 127);
  EXPECT_EQ(decode(TK_U8, encode(TK_U8, -3)), 0);
  EXPECT_EQ(decode(TK_I32, encode(TK_I32, 2.5)), 2);
  EXPECT_EQ(encode(TK_I64, 1e30), uint64_t(std::numeric_limits<int64_t>::max()));
  const float f = 1;
  EXPECT_THROW(decode_integer(TK_F32, reinterpret_cast<const std::byte*>(&f)),
               std::invalid_argument);
}

}  // namespace
}  // namespace harness
