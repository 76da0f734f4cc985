// SPDX-License-Identifier: Apache-2.0
// Emulation and hardware agree on every device function: bit for bit where the dialect says exact
// and on small integers, within a bound on random data. Without a GPU the comparison is skipped and
// simt is held against the formulas alone.
#include <bit>
#include <cmath>
#include <random>

#include "plugin/loaded.h"
#include "probes.h"

using namespace conformance;

namespace {

using Words = std::vector<uint32_t>;

class Backend {
 public:
  explicit Backend(const std::string& name) : plugin_(plugin_test::load("conformance-" + name)) {
    if (!plugin_) return;
    int32_t count = 0;
    if (plugin_->runtime->device_count(&count) != TK_OK) {
      absent = plugin_->runtime->last_error();
    } else {
      EXPECT_EQ(plugin_->runtime->open(0), TK_OK) << plugin_->runtime->last_error();
    }
  }
  Words run(Probe probe, const Words& in) const {
    const tk_runtime& r = *plugin_->runtime;
    Words out(kSizes[probe].out, 0xdeadbeef);
    void *device_in = nullptr, *device_out = nullptr;
    EXPECT_EQ(r.allocate(4 * in.size(), &device_in), TK_OK) << r.last_error();
    EXPECT_EQ(r.allocate(4 * out.size(), &device_out), TK_OK) << r.last_error();
    EXPECT_EQ(r.copy_in(device_in, in.data(), 4 * in.size(), nullptr), TK_OK) << r.last_error();
    const char* op = probe < kMovedMatrixHalves ? "dialect.probe" : "dialect.nvidia";
    plugin_test::Call call(op);
    call.tensor("in", TK_U32, {int64_t(in.size())}, device_in);
    call.tensor("out", TK_U32, {int64_t(out.size())}, device_out);
    const std::string number = std::to_string(probe);
    call.scalar("probe", number.c_str());
    EXPECT_EQ(plugin_test::find_op(*plugin_, op)->run(call.get()), TK_OK) << call.message;
    EXPECT_EQ(r.copy_out(out.data(), device_out, 4 * out.size(), nullptr), TK_OK) << r.last_error();
    r.release(device_in);
    r.release(device_out);
    return out;
  }
  std::string absent;

 private:
  const tk_plugin* plugin_;
};

const Backend& simt() {
  static const Backend backend("simt");
  return backend;
}

class Conformance : public testing::Test {
 protected:
  void SetUp() override {
    if (!CONFORMANCE_WITH_CUDA) GTEST_SKIP() << "this build has no cuda backend";
    static const Backend backend("cuda");
    if (!backend.absent.empty()) GTEST_SKIP() << backend.absent;
    cuda_ = &backend;
  }
  // The same input, the same words.
  void agrees(Probe probe, const Words& in) {
    const Words a = simt().run(probe, in), b = cuda_->run(probe, in);
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(a[i], b[i]) << "word " << i << ": simt, then cuda";
  }
  const Backend* cuda_ = nullptr;
};

Words random_words(int count) {
  std::mt19937 bits(20261130);
  Words words(count);
  for (auto& w : words) w = uint32_t(bits());
  return words;
}

// Every kind of float: random bits, and values that the formats round or clamp.
Words random_floats(int count) {
  Words words = random_words(count);
  const float special[] = {0.0f,     -0.0f,    1.0f,      -1.0f,         448.0f,        464.0f,
                           465.0f,   240.0f,   1.75f,     1.8125f,       65504.0f,      65520.0f,
                           57344.0f, 61440.0f, 1e-8f,     5.9604645e-8f, 2.9802322e-8f, 1e-45f,
                           1e-38f,   INFINITY, -INFINITY, NAN,           3.4028235e38f};
  size_t at = 0;
  for (const float s : special) words[at++] = std::bit_cast<uint32_t>(s);
  std::mt19937 bits(7);
  std::uniform_real_distribution<float> near(-500.0f, 500.0f);
  for (; at < words.size() / 2; ++at) words[at] = std::bit_cast<uint32_t>(near(bits));
  return words;
}

bool is_nan(uint32_t w) { return std::isnan(std::bit_cast<float>(w)); }

TEST_F(Conformance, Indices) { agrees(kIndices, random_words(kSizes[kIndices].in)); }
TEST_F(Conformance, Shuffles) { agrees(kShuffles, random_words(kSizes[kShuffles].in)); }
TEST_F(Conformance, Votes) { agrees(kVotes, random_words(kSizes[kVotes].in)); }
TEST_F(Conformance, Reductions) { agrees(kReductions, random_words(kSizes[kReductions].in)); }
TEST_F(Conformance, SharedAtomics) {
  agrees(kSharedAtomics, random_words(kSizes[kSharedAtomics].in));
}
TEST_F(Conformance, GlobalAtomics) {
  agrees(kGlobalAtomics, random_words(kSizes[kGlobalAtomics].in));
}
TEST_F(Conformance, AsyncCopies) { agrees(kAsyncCopies, random_words(kSizes[kAsyncCopies].in)); }
TEST_F(Conformance, DynamicSharedMemoryBeyond48KiB) {
  agrees(kDynamicShared, random_words(kSizes[kDynamicShared].in));
}
TEST_F(Conformance, FormatsToFloat) {
  Words all(kValues);
  for (int i = 0; i < kValues; ++i) all[i] = uint32_t(i);
  const Words a = simt().run(kToFloat, all), b = cuda_->run(kToFloat, all);
  for (size_t i = 0; i < a.size(); ++i) {
    const bool f16 = i / kValues == 1;  // its instruction does not keep the payload of a NaN
    if (f16 && is_nan(a[i]) && is_nan(b[i])) continue;
    ASSERT_EQ(a[i], b[i]) << "format " << i / kValues << ", bits " << i % kValues;
  }
}
TEST_F(Conformance, FormatsFromFloat) { agrees(kFromFloat, random_floats(kValues)); }

TEST_F(Conformance, ExactMathDiffersOnlyInNanBits) {
  const Words in = random_floats(3 * kValues);
  const Words a = simt().run(kExactMath, in), b = cuda_->run(kExactMath, in);
  for (size_t i = 0; i < a.size(); ++i) {
    if (is_nan(a[i]) && is_nan(b[i])) continue;
    const bool zeros = ((a[i] | b[i]) << 1) == 0;  // the sign of min(-0, +0) is free
    ASSERT_TRUE(a[i] == b[i] || zeros) << "function " << i / kValues << " value " << i % kValues
                                       << ": simt " << std::hex << a[i] << ", cuda " << b[i];
  }
}

// Distance of a float from a float64 value in units of the last place.
double ulps(uint32_t word, double right) {
  const float got = std::bit_cast<float>(word);
  if (std::isnan(right)) return std::isnan(got) ? 0 : INFINITY;
  const float near = static_cast<float>(right);
  if (std::isinf(near) || std::isinf(got))
    return near == got ? 0 : std::fabs(right) > 3.40282346e38 ? 0 : INFINITY;
  int exponent = 0;
  std::frexp(right, &exponent);
  return std::fabs(double(got) - right) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

void rounded_math_is_within_two_ulp(const Backend& backend) {
  const Words in = random_floats(kValues);
  const Words out = backend.run(kRoundedMath, in);
  using Function = double (*)(double);
  const Function right[kRoundedFunctions] = {
      [](double x) { return std::exp2(x); }, [](double x) { return std::exp(x); },
      [](double x) { return std::log2(x); }, [](double x) { return std::log(x); },
      [](double x) { return 1 / std::sqrt(x); }};
  for (int f = 0; f < kRoundedFunctions; ++f)
    for (int i = 0; i < kValues; ++i) {
      const double x = std::bit_cast<float>(in[i]);
      ASSERT_LE(ulps(out[f * kValues + i], right[f](x)), 2.0)
          << "function " << f << " of " << x << " gives "
          << std::bit_cast<float>(out[f * kValues + i]);
    }
}
TEST_F(Conformance, RoundedMathIsWithinTwoUlp) { rounded_math_is_within_two_ulp(*cuda_); }
TEST(ConformanceOfSimt, RoundedMathIsWithinTwoUlp) { rounded_math_is_within_two_ulp(simt()); }

struct MmaData {
  Words in;
  std::vector<double> right, magnitude;  // of D, and sum |a b| + |c|
};

// `step` 1: integers -8 to 8, exact in every order of summation. Else: any multiple of it below 1.
template <class Encode>
MmaData mma_data(double step, Encode encode) {
  std::mt19937 bits(5);
  const int most = step == 1 ? 8 : int(1 / step) - 1;
  std::uniform_int_distribution<int> some(-most, most);
  std::vector<double> a(kMmaM * kMmaK), b(kMmaK * kMmaN), c(kMmaM * kMmaN);
  MmaData data;
  for (auto& x : a) data.in.push_back(encode(x = step * some(bits)));
  for (auto& x : b) data.in.push_back(encode(x = step * some(bits)));
  for (auto& x : c) data.in.push_back(std::bit_cast<uint32_t>(float(x = step * some(bits))));
  for (int row = 0; row < kMmaM; ++row)
    for (int col = 0; col < kMmaN; ++col) {
      double sum = c[row * kMmaN + col], size = std::fabs(sum);
      for (int k = 0; k < kMmaK; ++k) {
        sum += a[row * kMmaK + k] * b[k * kMmaN + col];
        size += std::fabs(a[row * kMmaK + k] * b[k * kMmaN + col]);
      }
      data.right.push_back(sum);
      data.magnitude.push_back(size);
    }
  return data;
}
uint32_t as_bf16(double x) { return std::bit_cast<uint32_t>(float(x)) >> 16; }
uint32_t as_f16(double x) { return std::bit_cast<uint16_t>(_Float16(x)); }

// Steps that the format holds exactly: 7 bits of a fraction for bf16, 10 for f16.
void mma_is_right(const Backend& backend, Probe probe) {
  const bool bf16 = probe == kMmaBf16 || probe == kMultipliedBf16;
  for (const double step : {1.0, bf16 ? 1.0 / 128 : 1.0 / 1024}) {
    const MmaData data = bf16 ? mma_data(step, as_bf16) : mma_data(step, as_f16);
    const Words out = backend.run(probe, data.in);
    for (int i = 0; i < kMmaM * kMmaN; ++i) {
      // Each of the K + 1 addends may lose less than one unit in the last place of the largest.
      const double bound = step == 1 ? 0 : (kMmaK + 1) * std::ldexp(data.magnitude[i], -23);
      ASSERT_LE(std::fabs(std::bit_cast<float>(out[i]) - data.right[i]), bound)
          << "row " << i / kMmaN << " column " << i % kMmaN << " step " << step;
      if (probe == kMultipliedF16) {  // two steps of k
        ASSERT_LE(std::fabs(std::bit_cast<float>(out[kMmaM * kMmaN + i]) - data.right[i]), bound);
      }
    }
  }
}
TEST_F(Conformance, MatrixProductsOfBf16) { mma_is_right(*cuda_, kMmaBf16); }
TEST_F(Conformance, MatrixProductsOfF16) { mma_is_right(*cuda_, kMmaF16); }
TEST(ConformanceOfSimt, MatrixProductsOfBf16) { mma_is_right(simt(), kMmaBf16); }
TEST(ConformanceOfSimt, MatrixProductsOfF16) { mma_is_right(simt(), kMmaF16); }
TEST_F(Conformance, FragmentCoordinatesAndSmallIntegerProducts) {
  agrees(kMmaBf16, mma_data(1, as_bf16).in);
  agrees(kMmaF16, mma_data(1, as_f16).in);
}

TEST_F(Conformance, ProductsOfRegisters) {
  mma_is_right(*cuda_, kMultipliedBf16);
  mma_is_right(*cuda_, kMultipliedF16);
  agrees(kMultipliedBf16, mma_data(1, as_bf16).in);
}
TEST(ConformanceOfSimt, ProductsOfRegisters) {
  mma_is_right(simt(), kMultipliedBf16);
  mma_is_right(simt(), kMultipliedF16);
}
TEST_F(Conformance, ProductsOfBytes) {
  agrees(kMultipliedBytes, random_words(kSizes[kMultipliedBytes].in));
}
TEST(ConformanceOfSimt, ProductsOfBytes) {
  const Words in = random_words(kSizes[kMultipliedBytes].in);
  const Words out = simt().run(kMultipliedBytes, in);
  const uint32_t *b = in.data() + kMmaM * kBytesK, *c = b + kBytesK * kMmaN;
  for (int row = 0; row < kMmaM; ++row)
    for (int col = 0; col < kMmaN; ++col) {
      auto sum = static_cast<int32_t>(c[row * kMmaN + col] >> 8);
      for (int k = 0; k < kBytesK; ++k)
        sum += static_cast<int8_t>(in[row * kBytesK + k]) * static_cast<int8_t>(b[k * kMmaN + col]);
      ASSERT_EQ(static_cast<int32_t>(out[row * kMmaN + col]), sum);
    }
}
TEST_F(Conformance, MovedMatrices) {
  agrees(kMovedMatrixHalves, random_words(kSizes[kMovedMatrixHalves].in));
}
TEST(ConformanceOfSimt, MovedMatrices) {
  const Words in = random_words(kSizes[kMovedMatrixHalves].in);
  const Words out = simt().run(kMovedMatrixHalves, in);
  const auto half = [&](int m, int row, int col) {
    return in[m * 32 + row * 4 + col / 2] >> col % 2 * 16 & 0xffff;
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, member = lane % 4;
    const uint32_t* o = out.data() + lane * kMovedWords;
    for (int m = 0; m < kMovedMatrices; ++m) {
      const uint32_t row = half(m, group, 2 * member) | half(m, group, 2 * member + 1) << 16;
      const uint32_t column = half(m, 2 * member, group) | half(m, 2 * member + 1, group) << 16;
      ASSERT_EQ(o[2 * m], row);
      ASSERT_EQ(o[2 * m + 1], column);
      if (m == 0) {
        ASSERT_EQ(o[2 * kMovedMatrices], column);
      }
      ASSERT_EQ(o[2 * kMovedMatrices + 1 + m], in[lane * 4 + m]);
      ASSERT_EQ(o[2 * kMovedMatrices + 5 + m], in[lane * 4 + m]);
    }
    o += 2 * kMovedMatrices + 1 + 2 * 4;
    for (int w = 0; w < 3; ++w) ASSERT_EQ(o[w], in[lane * 4 + w]);
    ASSERT_EQ(o[3], in[lane * 4 + 3] >> 16);
    for (int w = 0; w < 4; ++w) ASSERT_EQ(o[4 + w], in[lane % 31 * 4 + 4 + w]);
  }
}

TEST_F(Conformance, BulkCopies) { agrees(kBulkCopies, random_words(kSizes[kBulkCopies].in)); }
TEST(ConformanceOfSimt, BulkCopies) {
  const Words in = random_words(kSizes[kBulkCopies].in);
  EXPECT_EQ(simt().run(kBulkCopies, in), in);
}

// As `agrees`, but for the payloads of NaNs, which pack_halves and the halves do not keep.
bool same_value(int function, uint32_t a, uint32_t b) {
  const auto nan = [](uint32_t h, uint32_t infinity) { return (h & 0x7fff) > infinity; };
  const auto same_half = [&](uint32_t x, uint32_t y, uint32_t infinity) {
    return x == y || (nan(x, infinity) && nan(y, infinity));
  };
  switch (function) {
    case 0:
    case 1:
    case 18:
      return a == b;
    case 2:
    case 3:
    case 8:
    case 9:
    case 10:
    case 11:
    case 12:
    case 15: {
      const bool bf16 = function == 2 || function == 9 || function == 10;
      const uint32_t infinity = bf16 ? 0x7f80 : 0x7c00;
      return same_half(a & 0xffff, b & 0xffff, infinity) && same_half(a >> 16, b >> 16, infinity);
    }
    case 14:
    case 16:
    case 17: {  // e4m3fn bytes: 0x7f is NaN
      const auto same_byte = [](uint32_t x, uint32_t y) {
        return x == y || ((x & 0x7f) == 0x7f && (y & 0x7f) == 0x7f);
      };
      return same_byte(a & 0xff, b & 0xff) && same_byte(a >> 8, b >> 8);
    }
    default:
      return a == b || (is_nan(a) && is_nan(b));
  }
}
TEST_F(Conformance, BitsAndHalves) {
  const Words in = random_floats(kValues);
  const Words a = simt().run(kBitsAndHalves, in), b = cuda_->run(kBitsAndHalves, in);
  for (int i = 0; i < kValues; ++i)
    for (int f = 0; f < kFastExp2At; ++f)
      ASSERT_TRUE(same_value(f, a[i * kBitsWords + f], b[i * kBitsWords + f]))
          << "function " << f << " value " << i << " (" << std::hex << in[i] << ", "
          << in[(i + 1) % kValues] << "): simt " << a[i * kBitsWords + f] << ", cuda "
          << b[i * kBitsWords + f];
}
void a_launch_sees_what_the_one_before_wrote(const Backend& backend) {
  const Words in = random_words(kOverlapping), out = backend.run(kOverlappedLaunches, in);
  for (int i = 0; i < kOverlapping; ++i) {
    uint32_t x = in[i];
    for (int step = 0; step < kSlowSteps; ++step) x = x * 1664525 + 1013904223 + (x >> 16);
    ASSERT_EQ(out[i], x);
    ASSERT_EQ(out[2 * kOverlapping - 1 - i], x) << "read " << i;
  }
}
TEST_F(Conformance, ALaunchSeesWhatTheOneBeforeWrote) {
  a_launch_sees_what_the_one_before_wrote(*cuda_);
}
TEST(ConformanceOfSimt, ALaunchSeesWhatTheOneBeforeWrote) {
  a_launch_sees_what_the_one_before_wrote(simt());
}
void fast_exp2_is_within_two_ulp(const Backend& backend) {
  const Words in = random_floats(kValues), out = backend.run(kBitsAndHalves, in);
  for (int i = 0; i < kValues; ++i) {
    const uint32_t got = out[i * kBitsWords + kFastExp2At];
    const double right = std::exp2(double(std::bit_cast<float>(in[i])));
    if (got == 0 && right < 1.2e-38) continue;  // below the smallest normal number
    ASSERT_LE(ulps(got, right), 2.0) << "exp2_fast of " << std::bit_cast<float>(in[i]);
  }
}
void fast_rsqrt_is_within_two_ulp(const Backend& backend) {
  const Words in = random_floats(kValues), out = backend.run(kBitsAndHalves, in);
  for (int i = 0; i < kValues; ++i) {
    const float x = std::bit_cast<float>(in[i]);
    if (!(x >= 1.2e-38f)) continue;  // denormals count as zero
    ASSERT_LE(ulps(out[i * kBitsWords + kFastExp2At + 1], 1 / std::sqrt(double(x))), 2.0)
        << "rsqrt_fast of " << x;
  }
}
void fast_reciprocal_is_within_two_ulp(const Backend& backend) {
  const Words in = random_floats(kValues), out = backend.run(kBitsAndHalves, in);
  for (int i = 0; i < kValues; ++i) {
    const float x = std::bit_cast<float>(in[i]);
    if (!(x >= 1.2e-38f && x < 8e37f)) continue;  // denormals, of the result too, count as zero
    ASSERT_LE(ulps(out[i * kBitsWords + kFastExp2At + 2], 1 / double(x)), 2.0)
        << "reciprocal_fast of " << x;
  }
}
TEST_F(Conformance, FastReciprocalIsWithinTwoUlp) { fast_reciprocal_is_within_two_ulp(*cuda_); }
TEST(ConformanceOfSimt, FastReciprocalIsWithinTwoUlp) { fast_reciprocal_is_within_two_ulp(simt()); }
TEST_F(Conformance, FastRsqrtIsWithinTwoUlp) { fast_rsqrt_is_within_two_ulp(*cuda_); }
TEST(ConformanceOfSimt, FastRsqrtIsWithinTwoUlp) { fast_rsqrt_is_within_two_ulp(simt()); }
TEST_F(Conformance, FastExp2IsWithinTwoUlp) { fast_exp2_is_within_two_ulp(*cuda_); }
TEST(ConformanceOfSimt, FastExp2IsWithinTwoUlp) { fast_exp2_is_within_two_ulp(simt()); }

// A bf16 such as 0x7f81 becomes a signalling NaN; std::fmin and std::fmax of the C library answer
// it with NaN.
TEST(ConformanceOfSimt, MinAndMaxPassOverQuietAndSignallingNans) {
  Words in(3 * kValues, 0);
  const uint32_t one = std::bit_cast<uint32_t>(1.0f);
  const uint32_t nans[] = {0x7fc00000, 0xffc00001, 0x7f810000, 0xff800001};
  for (int i = 0; i < 4; ++i) {
    in[i] = in[kValues + 4 + i] = nans[i];
    in[4 + i] = in[kValues + i] = one;
  }
  const Words out = simt().run(kExactMath, in);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(out[3 * kValues + i], one) << "min, case " << i;
    EXPECT_EQ(out[4 * kValues + i], one) << "max, case " << i;
  }
}

TEST(ConformanceOfSimt, AsyncCopiesFillWithZerosWhereNotValid) {
  const Words in = random_words(kSizes[kAsyncCopies].in), out = simt().run(kAsyncCopies, in);
  for (int s = 0; s < 3; ++s)
    for (int t = 0; t < kThreads; ++t) {
      const int other = (t * 5 + 1) % kThreads;
      for (int w = 0; w < 4; ++w)
        ASSERT_EQ(out[(s * kThreads + t) * 4 + w],
                  (other + s) % 4 ? in[4 * ((other + s) % kThreads) + w] : 0u);
    }
}

}  // namespace
