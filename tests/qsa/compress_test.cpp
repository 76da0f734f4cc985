// SPDX-License-Identifier: Apache-2.0
#include "check.h"

using namespace check;

namespace {

// One request whose step begins at `first`; the key at position p is `p mod 8 + 1` in every dim.
Case prefix_case(int64_t first, int64_t rows, int64_t ring_block = 1) {
  const int64_t dim = 8;
  Tensor keys = make_tensor(TK_BF16, {rows, 1, dim}), ring = make_tensor(TK_BF16, {3, 8, 1, dim});
  fill_poison(ring);
  std::vector<int64_t> positions, slots;
  for (int64_t i = 0; i < rows; ++i) {
    positions.push_back(first + i);
    slots.push_back((first + i + 1) % 4 == 0 ? 100 + i : -1);
    for (int64_t d = 0; d < dim; ++d) keys.set_real(i * dim + d, double((first + i) % 8 + 1));
  }
  for (int64_t p = std::max<int64_t>(0, first - 8); p < first; ++p)
    for (int64_t d = 0; d < dim; ++d) ring.set_real((8 + p % 8) * dim + d, double(p % 8 + 1));
  Tensor raw = make_tensor(TK_I64, {rows, 1, 3});
  for (int64_t i = 0; i < rows * 3; ++i) raw.set_integer(i, positions[size_t(i / 3)]);
  return make_case("qsa.compress",
                   {{"raw_keys", keys},
                    {"raw_positions", raw},
                    {"compressor_state_cache", ring},
                    {"compressor_state_block_table", ids({ring_block}, {1, 1})},
                    {"token_to_req", ids(std::vector<int64_t>(size_t(rows), 0))},
                    {"query_start_loc", ids({0, rows})},
                    {"logical_positions", longs(positions)},
                    {"compressed_slots", longs(slots)}},
                   {{"compress_ratio", "4"}});
}
double pooled(const reference::Result& r, int64_t row) {
  return r.outputs.at("pooled").value[size_t(row * 8)];
}
int64_t first_position(const reference::Result& r, int64_t row) {
  return r.outputs.at("first_positions").integer[size_t(row * 3)];
}

}  // namespace

TEST(QsaCompress, AGroupMixesRingAndStep) {  // B11
  const reference::Result r = oracle_of(prefix_case(842, 6));
  for (int64_t row = 0; row < 6; ++row) {
    const bool closes = row == 1 || row == 5;
    EXPECT_EQ(pooled(r, row), row == 1 ? 2.5 : row == 5 ? 6.5 : 0.0) << row;
    EXPECT_EQ(first_position(r, row), closes ? 839 + row : 0) << row;
  }
}

TEST(QsaCompress, AnInvalidRingBlockCountsAsZeros) {  // B11
  const reference::Result r = oracle_of(prefix_case(842, 6, -1));
  EXPECT_EQ(pooled(r, 1), 1.75);
  EXPECT_EQ(first_position(r, 1), 840);  // no rope cache: the position is known all the same
  EXPECT_EQ(pooled(r, 5), 6.5);
  EXPECT_TRUE(has_finding(card_of("qsa.compress").findings(prefix_case(842, 6, -1)),
                          "1 groups reach into a ring block"));
}

TEST(QsaCompress, StepsShorterThanAGroupReadNothingElse) {  // B10: the ring is NaN everywhere
  for (int64_t rows = 1; rows <= 4; ++rows) {
    const reference::Result r = oracle_of(prefix_case(0, rows));
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_EQ(pooled(r, row), row == 3 ? 2.5 : 0.0);
      EXPECT_EQ(first_position(r, row), 0);
    }
  }
}

TEST(QsaCompress, TwoRequestsThatBeginInsideAGroup) {
  Case a = prefix_case(842, 6), b = prefix_case(5, 3);
  Tensor keys = make_tensor(TK_BF16, {9, 1, 8}), raw = make_tensor(TK_I64, {9, 1, 3});
  for (int64_t i = 0; i < 72; ++i)
    keys.set_real(i,
                  i < 48 ? a.inputs.at("raw_keys").real(i) : b.inputs.at("raw_keys").real(i - 48));
  Tensor ring = a.inputs.at("compressor_state_cache").packed();
  for (int64_t i = 0; i < 64; ++i)
    ring.set_real(i, b.inputs.at("compressor_state_cache").real(64 + i));  // block 0
  a.inputs["raw_keys"] = keys;
  a.inputs["raw_positions"] = raw;
  a.inputs["compressor_state_cache"] = ring;
  a.inputs["compressor_state_block_table"] = ids({1, 0}, {2, 1});
  a.inputs["token_to_req"] = ids({0, 0, 0, 0, 0, 0, 1, 1, 1});
  a.inputs["query_start_loc"] = ids({0, 6, 9});
  a.inputs["logical_positions"] = longs({842, 843, 844, 845, 846, 847, 5, 6, 7});
  a.inputs["compressed_slots"] = longs({-1, 1, -1, -1, -1, 2, -1, -1, 3});
  const reference::Result r = oracle_of(a);
  EXPECT_EQ(pooled(r, 1), 2.5);
  EXPECT_EQ(pooled(r, 5), 6.5);
  EXPECT_EQ(pooled(r, 8), 6.5);  // 5, 6, 7, 8
  EXPECT_EQ(first_position(r, 8), 4);
}

TEST(QsaCompress, PowersOfTwoAreExactAndOthersNearlySo) {
  const Case four = suite_case("qsa.compress", "speculative-rope"),
             three = suite_case("qsa.compress", "ratio-3-ring-5");
  const reference::Result exact = oracle_of(four), r = oracle_of(three);
  for (const double b : exact.outputs.at("pooled").bound) EXPECT_EQ(b, 0);
  const reference::Output& o = r.outputs.at("pooled");
  for (size_t i = 0; i < o.value.size(); ++i)
    EXPECT_LE(o.bound[i], std::fabs(o.value[i]) * 0x1p-6 + 1e-30);
}

TEST(QsaCompress, SuiteIsSoundAndFaultsAreSeen) { expect_sound_suite("qsa.compress"); }
