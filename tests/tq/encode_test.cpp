// SPDX-License-Identifier: Apache-2.0
#include "tq/encode.h"

#include <cmath>
#include <random>

#include "harness/generate/fill.h"
#include "harness/generate/turboquant.h"
#include "harness/ops/tq_cards.h"
#include "harness/ops/tq_quality.h"
#include "suite.h"

namespace tq_test {
namespace {

// N tokens of one head into slots 0..N-1 of an otherwise zero cache.
harness::Case tokens(const char* quant, int64_t dim, const std::vector<double>& keys, const std::vector<double>& values,
                     const char* flavour = "e4m3fn") {
  harness::Case c;
  c.op = "tq.encode";
  const harness::TqCodebook book{harness::tq_preset(quant), dim, flavour, "identity"};
  harness::add_codebook(c, book, true, harness::Random(1, "book"));
  const int64_t n = int64_t(keys.size()) / dim;
  c.inputs["key"] = harness::from_reals(TK_F32, keys, {n, 1, dim});
  c.inputs["value"] = harness::from_reals(TK_F32, values, {n, 1, dim});
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < n; ++i) slots.push_back(i);
  c.inputs["slot_mapping"] = harness::from_integers(TK_I64, slots);
  c.inputs["kv_cache"] = harness::make_tensor(TK_U8, {1, n, 1, harness::tq_slot_bytes(book.preset, dim)});
  return c;
}
harness::Case token(const char* quant, const std::vector<double>& key, const std::vector<double>& value,
                    const char* flavour = "e4m3fn") {
  return tokens(quant, int64_t(key.size()), key, value, flavour);
}

// The same cache as an input of tq.dequant.
reference::Result decoded(const harness::Case& encoded) {
  harness::Case c;
  c.op = "tq.dequant";
  c.scalars = encoded.scalars;
  const harness::Tensor cache = harness::oracle_outputs(encoded).at("kv_cache");
  c.inputs["kv_cache"] = cache;
  c.inputs["block_table"] = harness::from_integers(TK_I32, {0}, {1, 1});
  if (encoded.inputs.count("centroids")) c.inputs["centroids"] = encoded.inputs.at("centroids");
  c.scalars["head_dim"] = std::to_string(encoded.inputs.at("key").shape[2]);
  return oracle(c);
}

TEST(TqEncode, PacksCodesAsALittleEndianStream) {
  // Value codes 0..7 in three bits (range 7, scale 1).
  const harness::Case c = token("3bit_nc", std::vector<double>(8, 1), {0, 1, 2, 3, 4, 5, 6, 7});
  const auto bytes = oracle(c).outputs.at("kv_cache").bytes;
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin() + 5, bytes.begin() + 12),
            (std::vector<uint8_t>{0x88, 0xc6, 0xfa, 0x00, 0x3c, 0x00, 0x00}));
}

TEST(TqEncode, EveryCodeOccursAtEveryHeadSizeAndSurvives) {
  for (const int64_t dim : {64, 80, 96, 100, 128, 192, 256}) {
    for (const char* quant : {"3bit_nc", "4bit_nc"}) {
      const int levels = quant[0] == '3' ? 8 : 16;
      std::vector<double> value;
      for (int64_t d = 0; d < dim; ++d) value.push_back(double((d * 5 + d / levels) % levels));
      value[0] = 0;
      value[1] = levels - 1;
      const auto v = decoded(token(quant, std::vector<double>(size_t(dim), 1), value)).outputs.at("v").value;
      EXPECT_EQ(v, value) << quant << " D=" << dim;
      EXPECT_EQ(std::set<double>(v.begin(), v.end()).size(), size_t(levels)) << quant << " D=" << dim;
    }
  }
}

TEST(TqEncode, Fp8KeysAreCastAndSaturate) {
  const auto bytes = [](const char* flavour) {
    const harness::Case c = token("k8v4", {0.5, 1.75, 2.0, -8.0, 448, 1e9, -0.0, 0.3}, std::vector<double>(8, 0), flavour);
    const auto all = oracle(c).outputs.at("kv_cache").bytes;
    return std::vector<uint8_t>(all.begin(), all.begin() + 8);
  };
  EXPECT_EQ(bytes("e4b15"), (std::vector<uint8_t>{0x70, 0x7e, 0x7e, 0xfe, 0x7e, 0x7e, 0x80, 0x6a}));
  EXPECT_EQ(bytes("e4m3fn"), (std::vector<uint8_t>{0x30, 0x3e, 0x40, 0xd0, 0x7e, 0x7e, 0x80, 0x2a}));
  EXPECT_EQ(bytes("e4m3fnuz"), (std::vector<uint8_t>{0x38, 0x46, 0x48, 0xd8, 0x7f, 0x7f, 0x00, 0x32}));
  const harness::Case c = token("k8v4", {0.5, 1.75, 2.0, -8.0, 448, 0, 0, 0}, std::vector<double>(8, 0), "e4b15");
  EXPECT_TRUE(mentions(oracle(c).findings, "saturated=3"));
}

TEST(TqEncode, KeysOfEveryFloatTypeGiveTheSameBytes) {
  harness::Case c = made("tq.encode", "quant=k8v4 dtype=bf16");
  const auto bytes = oracle(c).outputs.at("kv_cache").bytes;
  for (const char* name : {"key", "value"}) {
    const harness::Tensor narrow = c.inputs[name];
    harness::Tensor wide = harness::make_tensor(TK_F32, narrow.shape);
    for (int64_t i = 0; i < wide.count(); ++i) wide.set_real(i, narrow.real(i));
    c.inputs[name] = wide;
  }
  EXPECT_EQ(oracle(c).outputs.at("kv_cache").bytes, bytes);
}

TEST(TqEncode, AValueOnAMidpointGoesUp) {
  // y = 0 exactly: the upper middle code.
  std::vector<double> key(8, 0);
  key[3] = 1;
  const auto codes = oracle(token("4bit_nc", key, std::vector<double>(8, 0))).outputs.at("key_code").integer;
  for (size_t d = 0; d < 8; ++d) EXPECT_EQ(codes[d], d == 3 ? 15 : 8);
}

TEST(TqEncode, OutliersAreClampedBeforeQuantising) {
  std::vector<double> value;
  for (int i = 0; i < 128; ++i) value.push_back(-1 + 5.0 * i / 127);
  value[40] = -125000;
  const harness::Case c = token("4bit_nc", std::vector<double>(128, 1), value);
  const reference::Result truth = oracle(c);
  EXPECT_EQ(truth.outputs.at("zero").value[0], -65504);
  EXPECT_EQ(truth.outputs.at("scale").value[0], 4368);
  EXPECT_TRUE(mentions(truth.findings, "clamped=1"));
  const auto v = decoded(c).outputs.at("v").value;
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(v[i], i == 40 ? -65504 : 16.0) << i;
}

TEST(TqEncode, ClampingOnlyWhatIsStoredFails) {
  std::vector<double> value(128, 1.0);
  value[40] = -125000;
  const harness::Case c = token("4bit_nc", std::vector<double>(128, 1), value);
  harness::TensorMap results = harness::oracle_outputs(c);
  const int64_t scale = 128 / 2 + 2 + 128 / 2;
  // scale of the unclamped range, (1 + 125000) / 15 = 8333.4: bits 0x7012
  results["kv_cache"].set_integer(scale, 0x12);
  results["kv_cache"].set_integer(scale + 1, 0x70);
  EXPECT_EQ(judged(c, results).status, harness::Status::fail);
  results["kv_cache"].set_integer(scale, 0x00);
  results["kv_cache"].set_integer(scale + 1, 0xfc);
  const harness::Verdict verdict = judged(c, results);
  EXPECT_NE(verdict.reason.find("non-finite metadata in 1 slots, first slot 0, head 0: scale"), std::string::npos)
      << verdict.reason;
}

// The value fields of `made` in the slot of `c`.
harness::Status judged_with_values_of(const harness::Case& c, const harness::Case& made) {
  return judged(c, harness::oracle_outputs(made)).status;
}

TEST(TqEncode, OnlyAMinimumOrScaleBeyondHalfIsClamped) {
  const std::vector<double> key(16, 1);
  std::vector<double> value(16, -1.0), clamped;
  const auto both = [&](double outlier, double stored) {
    value[3] = outlier;
    clamped = value;
    clamped[3] = stored;
    const harness::Case plain = token("4bit_nc", key, value), other = token("4bit_nc", key, clamped);
    return std::pair{judged_with_values_of(plain, plain), judged_with_values_of(plain, other)};
  };
  using harness::Status;
  // max 125000: the scale is 8333, which f16 holds, so clamping is wrong; value codes differ by the other elements.
  value[5] = 30000;
  EXPECT_EQ(both(125000, 65504), (std::pair{Status::pass, Status::fail}));
  EXPECT_EQ(both(-65520, -65504), (std::pair{Status::pass, Status::pass}));  // rounds to -inf
  EXPECT_EQ(both(2e6, 65504), (std::pair{Status::pass, Status::pass}));      // scale 133333
  for (const auto& [least, clamps] : {std::pair{-65519.0, false}, std::pair{-65520.0, true}}) {
    value[3] = least;
    EXPECT_EQ(mentions(oracle(token("4bit_nc", key, value)).findings, "clamped=1"), clamps) << least;
  }
}

TEST(TqEncode, AScaleNextToTheOverflowMayBeClampedOrNotButNotAMixture) {
  const std::vector<double> key(16, 1);
  std::vector<double> value(16, 0.0);
  value[3] = 15 * 65520.0 - 0.0625;  // scale: an fp32 ulp or less below 65520
  value[5] = 40000;
  const harness::Case plain = token("4bit_nc", key, value);
  value[3] = 65504;
  const harness::Case clamped = token("4bit_nc", key, value);
  EXPECT_EQ(judged_with_values_of(plain, plain), harness::Status::pass);
  EXPECT_EQ(judged_with_values_of(plain, clamped), harness::Status::pass);
  harness::TensorMap mixed{{"kv_cache", harness::oracle_outputs(plain).at("kv_cache").packed()}};
  const harness::Tensor other = harness::oracle_outputs(clamped).at("kv_cache");
  for (int64_t i = 10; i < 18; ++i) mixed["kv_cache"].set_integer(i, other.integer(i));
  EXPECT_EQ(judged(plain, mixed).status, harness::Status::fail);
}

TEST(TqEncode, ZeroAndConstantVectorsStayFinite) {
  for (const char* quant : {"3bit_nc", "4bit_nc", "3bit_raw", "4bit_raw"}) {
    for (const double x : {0.0, -0.0, 3.25}) {
      std::vector<double> tiny(8, 0);
      tiny[2] = 1e-40;
      for (const std::vector<double>& key : {std::vector<double>(8, 0), std::vector<double>(8, -0.0), tiny}) {
        const reference::Result back = decoded(token(quant, key, std::vector<double>(8, x)));
        for (double v : back.outputs.at("v").value) EXPECT_EQ(v, x) << quant;
        for (double k : back.outputs.at("k").value) EXPECT_EQ(k, 0) << quant;
      }
    }
  }
}

TEST(TqEncode, ACodeMayMoveOnlyNextToAMidpoint) {
  const auto wrong_by_one = [](double y) {
    // A key whose rotated, normalised element 0 is y; the rest of its length lies in element 1.
    const harness::Case c = token("4bit_nc", {y, std::sqrt(1 - y * y), 0, 0}, {0, 1, 2, 3});
    harness::TensorMap results = harness::oracle_outputs(c);
    const int64_t byte = results["kv_cache"].integer(0), code = byte & 15;
    results["kv_cache"].set_integer(0, (byte & 0xf0) | (code - 1));
    return judged(c, results);
  };
  const std::vector<float> centroids = harness::tq_centroids(4, 4);
  const double midpoint = (centroids[10] + centroids[11]) / 2.0f;
  EXPECT_EQ(wrong_by_one(midpoint + 1e-7).status, harness::Status::pass);
  const harness::Verdict verdict = wrong_by_one(midpoint + 1e-6);
  EXPECT_EQ(verdict.status, harness::Status::fail);
  EXPECT_NE(verdict.first_bad.find("block 0, position 0, head 0, byte 0 (key code of dim 0..1)"), std::string::npos)
      << verdict.first_bad;
}

TEST(TqEncode, PaddingBitsAreZero) {
  const harness::Case c = made("tq.encode", "quant=3bit_nc dim=100 tokens=1 kv_heads=1");
  harness::TensorMap results = harness::oracle_outputs(c);
  EXPECT_EQ(judged(c, results).status, harness::Status::pass);
  const int64_t slot = c.inputs.at("slot_mapping").integer(0) * c.inputs.at("kv_cache").shape[3];
  EXPECT_EQ(results["kv_cache"].integer(slot + 37) & 0xf0, 0);  // 300 bits in 38 bytes
  results["kv_cache"].set_integer(slot + 37, results["kv_cache"].integer(slot + 37) | 0x10);
  EXPECT_EQ(judged(c, results).status, harness::Status::fail);
}

TEST(TqEncode, SkippedSlotsAndBytesBehindTheEndKeepTheirContent) {
  const harness::Case c = made("tq.encode", "hostile=skipped slot_pad=5");
  const auto wanted = oracle(c).outputs.at("kv_cache").bytes;
  const harness::Tensor& before = c.inputs.at("kv_cache");
  int64_t kept = 0;
  for (int64_t i = 0; i < before.count(); ++i) kept += wanted[size_t(i)] == before.integer(i);
  EXPECT_GT(kept, before.count() / 2);  // 16 of 48 slots are written
  EXPECT_TRUE(mentions(card("tq.encode").findings(c), "slots are beyond the cache's 48; skipped"));
  for (int64_t i : {before.count() - 1, int64_t{3}}) {
    harness::TensorMap results = harness::oracle_outputs(c);
    if (wanted[size_t(i)] != before.integer(i)) continue;
    results["kv_cache"].set_integer(i, before.integer(i) ^ 1);
    EXPECT_EQ(judged(c, results).status, harness::Status::fail);
  }
}

TEST(TqEncode, AnyContenderForASlotIsRightButNoMixture) {
  const harness::Case c = made("tq.encode", "hostile=duplicates tokens=2 kv_heads=2");
  EXPECT_TRUE(mentions(card("tq.encode").findings(c), "duplicate slot"));
  harness::Case first = c;
  const int64_t slot = c.inputs.at("slot_mapping").integer(0);
  first.inputs["slot_mapping"] = harness::from_integers(TK_I64, {slot, -1});
  const harness::TensorMap a = harness::oracle_outputs(first), b = harness::oracle_outputs(c);
  EXPECT_EQ(judged(c, a).status, harness::Status::pass);
  EXPECT_EQ(judged(c, b).status, harness::Status::pass);
  harness::TensorMap mixed{{"kv_cache", b.at("kv_cache").packed()}};
  const int64_t bytes = c.inputs.at("kv_cache").shape[3];
  for (int64_t i = 0; i < bytes; ++i)
    mixed["kv_cache"].set_integer(slot * 2 * bytes + i, a.at("kv_cache").integer(slot * 2 * bytes + i));
  EXPECT_EQ(judged(c, mixed).status, harness::Status::fail);
}

TEST(TqEncode, NonFiniteVectorsHaveNanFieldsAndFreeCodes) {
  const harness::Case c = made("tq.encode", "hostile=nonfinite dtype=f32 kv_heads=1 tokens=6");
  const reference::Result truth = oracle(c);
  EXPECT_TRUE(mentions(truth.findings, "2 key vectors hold NaN or inf"));
  EXPECT_TRUE(mentions(truth.findings, "2 value vectors hold NaN or inf"));
  harness::TensorMap results = harness::oracle_outputs(c);
  const int64_t slot = c.inputs.at("slot_mapping").integer(0) * c.inputs.at("kv_cache").shape[3];
  results["kv_cache"].set_integer(slot, 0xab);  // codes of a NaN key
  EXPECT_EQ(judged(c, results).status, harness::Status::pass);
  results["kv_cache"].set_integer(slot + 33, 0x3c);  // its norm a number
  EXPECT_EQ(judged(c, results).status, harness::Status::fail);
}

TEST(TqEncode, NormsBeyondHalfSaturate) {
  const reference::Result truth = oracle(token("4bit_nc", std::vector<double>(16, 20000), std::vector<double>(16, 0)));
  EXPECT_EQ(truth.outputs.at("norm").value[0], 65504);
  EXPECT_TRUE(mentions(truth.findings, "1 key norms are beyond f16"));
}

// Relative mean squared errors of normal keys and values, as known from the serving code's own tables (4000 vectors; two
// or three digits): key without and with norm correction, value.
struct Quality {
  const char *raw, *corrected;
  int64_t dim;
  double key_raw, key_corrected, value;
};
TEST(TqEncode, LosesAsMuchAsTheFormatIsKnownToLose) {
  const Quality known[] = {{"3bit_raw", "3bit_nc", 64, .0333, .0327, .0369},   {"3bit_raw", "3bit_nc", 128, .0341, .0339, .0459},
                           {"3bit_raw", "3bit_nc", 256, .0342, .0343, .0545},  {"4bit_raw", "4bit_nc", 64, .0092, .0089, .0081},
                           {"4bit_raw", "4bit_nc", 128, .0093, .0092, .0100},  {"4bit_raw", "4bit_nc", 256, .0094, .0094, .0119},
                           {"k8v4", "k8v4", 64, .00070, .00070, .0081},        {"k8v4", "k8v4", 128, .00071, .00071, .0100}};
  std::mt19937_64 bits(42);
  const auto uniform = [&] { return (double(bits() >> 11) + 0.5) * 0x1p-53; };
  for (const Quality& q : known) {
    const int64_t n = 600;
    std::vector<double> keys, values;
    for (int64_t i = 0; i < n * q.dim; ++i) {
      const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * M_PI * uniform();
      keys.push_back(double(float(radius * std::cos(angle))));
      values.push_back(double(float(radius * std::sin(angle))));
    }
    for (const bool corrected : {false, true}) {
      const reference::Result back = decoded(tokens(corrected ? q.corrected : q.raw, q.dim, keys, values));
      const auto lost = [](const std::vector<double>& from, const std::vector<double>& to) {
        double error = 0, size = 0;
        for (size_t i = 0; i < from.size(); ++i) {
          error += (from[i] - to[i]) * (from[i] - to[i]);
          size += from[i] * from[i];
        }
        return error / size;
      };
      // The rotation is the identity here, so rotated space is the keys' own. 3 %: the digits of the table and the samples.
      const double key = corrected ? q.key_corrected : q.key_raw;
      EXPECT_NEAR(lost(keys, back.outputs.at("k").value), key, 0.03 * key) << q.raw << corrected << " D=" << q.dim;
      EXPECT_NEAR(lost(values, back.outputs.at("v").value), q.value, 0.03 * q.value) << q.raw << " D=" << q.dim;
    }
  }
}

TEST(TqEncode, QualityIsToldWhereThereAreVectorsEnough) {
  const harness::Card* card = harness::find_card("tq.encode");
  const auto quality = [&](const char* tokens) {
    const harness::Case c = card->generate({{"dim", "128"}, {"kv_heads", "4"}, {"tokens", tokens}, {"blocks", "7"}}, 1);
    return harness::encode_quality(c, harness::oracle_outputs(c).at("kv_cache"));
  };
  EXPECT_EQ(quality("20"), "");
  EXPECT_TRUE(quality("100").starts_with("400 vectors: keys lose 0.009")) << quality("100");
}

TEST(TqEncode, SuitePassesAndItsFaultsAreNoticed) { expect_suite_judges("tq.encode", 2); }
TEST(TqEncode, CasesAreRepeatable) { expect_repeatable("tq.encode", "key"); }

}  // namespace
}  // namespace tq_test
