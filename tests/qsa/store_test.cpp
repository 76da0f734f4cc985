// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// B34: 4 pages of 16, slots below, at and beyond the edges, one twice.
Case edges(tk_dtype index) {
  Tensor cache = make_tensor(TK_BF16, {4, 16, 1, 8}), rows = make_tensor(TK_BF16, {7, 8});
  fill_real(cache, -1);
  for (int64_t i = 0; i < rows.count(); ++i) rows.set_real(i, 1 + double(i / 8));
  const int64_t lowest =
      index == TK_I64 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int32_t>::min();
  return make_case("qsa.store",
                   {{"cache", cache},
                    {"rows", rows},
                    {"slot_mapping", from_integers(index, {-1, 5, 64, 5, 0, lowest, 63})}});
}

}  // namespace

TEST(QsaStore, EdgesOfTheCacheAreWrittenAndTheRestSkipped) {
  for (const tk_dtype index : {TK_I64, TK_I32}) {
    const Case c = edges(index);
    const TensorMap right = right_results(c, oracle_of(c));
    const Tensor& cache = right.at("cache");
    EXPECT_EQ(cache.real(0), 5);       // row 4
    EXPECT_EQ(cache.real(63 * 8), 7);  // row 6
    EXPECT_EQ(cache.real(5 * 8), 4);   // row 3, the later of two
    EXPECT_EQ(cache.real(1 * 8), -1);
    EXPECT_EQ(name_of(judge(c, right).status), "pass");
    EXPECT_TRUE(has_finding(card_of("qsa.store").findings(c), "duplicate slot 5 (rows 1, 3)"));
    EXPECT_TRUE(has_finding(card_of("qsa.store").findings(c), "1 slots are beyond the cache's 64"));
  }
}

// Rows that two blocks write at the same time may mix: seen on an H200 under racecheck.
TEST(QsaStore, ContendingRowsAndTheirMixPassButNothingElse) {
  const Case c = edges(TK_I64);
  TensorMap results = right_results(c, oracle_of(c));
  for (int64_t w = 0; w < 8; ++w) results.at("cache").set_real(5 * 8 + w, 2);  // row 1 entire
  EXPECT_EQ(name_of(judge(c, results).status), "pass");
  results.at("cache").set_real(5 * 8 + 7, 4);  // and one element of row 3
  EXPECT_EQ(name_of(judge(c, results).status), "pass");
  results.at("cache").set_real(5 * 8 + 7, 3);  // an element of neither
  const Verdict v = judge(c, results);
  EXPECT_EQ(name_of(v.status), "fail");
  EXPECT_NE(v.first_bad.find("page 0, slot 5"), std::string::npos) << v.first_bad;
}

TEST(QsaStore, PaddingToSlotZeroIsReported) {
  Case c = edges(TK_I64);
  c.inputs["slot_mapping"] = longs({7, 5, 9, 0, 0, 0, 0});
  EXPECT_TRUE(has_finding(card_of("qsa.store").findings(c), "4 rows go to slot 0"));
}

TEST(QsaStore, RowsNotStoredAndStrayRowsAreTold) {
  const Case c = edges(TK_I64);
  TensorMap results = right_results(c, oracle_of(c));
  results.at("cache").set_real(63 * 8, -1);
  results.at("cache").set_real(20 * 8, 3);
  const Verdict v = judge(c, results);
  EXPECT_NE(v.reason.find("1 rows not stored, 1 stray rows"), std::string::npos) << v.reason;
}

TEST(QsaStore, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.store"); }
