// SPDX-License-Identifier: Apache-2.0
// The number formats of device/numeric.h against their definitions in double precision: every code
// is decoded, and encoding is tried at every number of the format, between neighbours, and at the
// ends.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "device/device.h"

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  const char* name;
  int exponent, mantissa, bias;
  uint32_t largest;  // code of the largest finite number
  float beyond;      // what larger numbers become: the largest number, or infinity
  std::function<float(uint32_t)> decode;
  std::function<uint32_t(float)> encode;
  uint32_t sign() const { return 1u << (exponent + mantissa); }
  double value(uint32_t code) const {
    const uint32_t e = code >> mantissa, m = code & ((1u << mantissa) - 1);
    return e == 0 ? std::ldexp(m, 1 - bias - mantissa)
                  : std::ldexp((1u << mantissa) + m, static_cast<int>(e) - bias - mantissa);
  }
};

template <class T>
Format half(const char* name, int exponent, int mantissa, int bias, uint32_t largest) {
  return {name,
          exponent,
          mantissa,
          bias,
          largest,
          kInf,
          [](uint32_t c) { return device::to_float(T{static_cast<uint16_t>(c)}); },
          [](float x) { return device::from_float<T>(x).bits; }};
}

std::vector<Format> formats() {
  using namespace device;
  const auto byte = [](float (*f)(uint8_t)) {
    return [f](uint32_t c) { return f(static_cast<uint8_t>(c)); };
  };
  return {half<f16>("f16", 5, 10, 15, 0x7bff),
          half<bf16>("bf16", 8, 7, 127, 0x7f7f),
          {"e4m3fn", 4, 3, 7, 0x7e, 448, byte(decode_e4m3fn), encode_e4m3fn},
          {"e4m3fnuz", 4, 3, 8, 0x7f, 240, byte(decode_e4m3fnuz), encode_e4m3fnuz},
          {"e5m2", 5, 2, 15, 0x7b, 57344, byte(decode_e5m2), encode_e5m2}};
}

TEST(Numeric, EveryFiniteCodeDecodesToItsValue) {
  for (const Format& f : formats())
    for (uint32_t c = 0; c <= f.largest; ++c) {
      ASSERT_EQ(f.decode(c), f.value(c)) << f.name << " " << c;
      if (c == 0 && std::string(f.name) == "e4m3fnuz") continue;  // its -0 is NaN
      ASSERT_EQ(f.decode(c | f.sign()), -f.value(c)) << f.name << " " << c;
      ASSERT_TRUE(std::signbit(f.decode(c | f.sign())));
    }
  for (uint32_t c = 0; c < 128; ++c) {
    const Format e4b15{"", 4, 3, 15, 0, 0, {}, {}};
    ASSERT_EQ(device::decode_e4b15(static_cast<uint8_t>(c)), e4b15.value(c));
    ASSERT_EQ(device::decode_e4b15(static_cast<uint8_t>(c | 128)), -e4b15.value(c));
  }
}

TEST(Numeric, EncodingIsToTheNearestAndTiesGoToEven) {
  for (const Format& f : formats()) {
    const bool no_minus_zero = std::string(f.name) == "e4m3fnuz";
    const auto expect = [&](float x, uint32_t code) {
      ASSERT_EQ(f.encode(x), code) << f.name << " " << x;
      ASSERT_EQ(f.encode(-x), no_minus_zero && code == 0 ? 0 : code | f.sign())
          << f.name << " " << -x;
    };
    for (uint32_t c = 0; c < f.largest; ++c) {
      const double low = f.value(c), high = f.value(c + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      if (static_cast<double>(middle) != (low + high) / 2)
        continue;  // bf16 denormals have no middle in fp32
      expect(static_cast<float>(low), c);
      expect(middle, c + c % 2);
      expect(std::nextafter(middle, 0.0f), c);
      expect(std::nextafter(middle, kInf), c + 1);
    }
  }
}

TEST(Numeric, TooLargeNumbersSaturateOrBecomeInfinity) {
  for (const Format& f : formats()) {
    const double last = f.value(f.largest), step = last - f.value(f.largest - 1);
    const auto middle = static_cast<float>(last + step / 2);
    EXPECT_EQ(f.decode(f.encode(std::nextafter(middle, 0.0f))), last) << f.name;
    for (float x : {middle, 2 * middle < kInf ? 2 * middle : middle,
                    std::numeric_limits<float>::max(), kInf}) {
      if (x < middle) continue;
      EXPECT_EQ(f.decode(f.encode(x)), f.beyond) << f.name << " " << x;
      EXPECT_EQ(f.decode(f.encode(-x)), -f.beyond) << f.name << " " << x;
    }
  }
}

TEST(Numeric, NanIsKept) {
  for (const Format& f : formats()) {
    EXPECT_TRUE(std::isnan(f.decode(f.encode(kNan)))) << f.name;
    EXPECT_TRUE(std::isnan(f.decode(f.encode(-kNan)))) << f.name;
    EXPECT_TRUE(std::isnan(f.decode(f.encode(device::bit_cast<float>(0x7f800001u))))) << f.name;
  }
  EXPECT_EQ(device::encode_e4m3fnuz(kNan), 0x80);
  EXPECT_EQ(device::encode_e4m3fn(kNan), 0x7f);
}

TEST(Numeric, TinyNumbersBecomeZero) {
  for (const Format& f : formats()) {
    if (std::string(f.name) == "bf16") continue;  // as small as fp32 goes
    EXPECT_EQ(f.encode(std::numeric_limits<float>::denorm_min()), 0u) << f.name;
    EXPECT_EQ(f.encode(std::numeric_limits<float>::min()), 0u) << f.name;
  }
}

// Nearest f16, clamped to 1.75, half up: checked at every f16 number.
TEST(Numeric, E4b15RoundsHalfUpAndClampsAt1p75) {
  for (uint32_t c = 0; c <= 0x7c00; ++c) {
    const float x = device::to_float(device::f16{static_cast<uint16_t>(c)});
    const uint32_t want = c >= 0x3f00 ? 0x7e : (c >> 7) + (c >> 6 & 1);
    ASSERT_EQ(device::encode_e4b15(x), want) << x;
    ASSERT_EQ(device::encode_e4b15(-x), want | 0x80) << x;
  }
  EXPECT_EQ(device::decode_e4b15(0x7e), 1.75f);
  EXPECT_EQ(device::decode_e4b15(0x7f), 1.875f);
}

TEST(Numeric, BitCastAndUnalignedLoadKeepTheBits) {
  const unsigned char bytes[] = {9, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(device::load<uint32_t>(bytes + 1), 0x04030201u);
  EXPECT_EQ(device::load<uint16_t>(bytes + 3), 0x0403u);
  EXPECT_EQ(device::bit_cast<uint32_t>(1.0f), 0x3f800000u);
}

}  // namespace
