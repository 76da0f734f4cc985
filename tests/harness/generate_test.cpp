// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "harness/generate/axes.h"
#include "harness/generate/batch.h"
#include "harness/generate/paged.h"
#include "harness/generate/selection.h"

namespace harness {
namespace {

TEST(Batch, DecodeStandsAtTheLastPositionOfEachRequest) {
  const Batch b = make_batch({.kind = "decode", .requests = 5, .context = 100, .padding_rows = 2},
                             Random(1, "b"));
  ASSERT_EQ(b.rows(), 7);
  EXPECT_EQ(b.sequence_lengths[0], 100);
  for (size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(b.token_to_req[r], int64_t(r));
    EXPECT_EQ(b.query_positions[r], b.sequence_lengths[r] - 1);
    EXPECT_GE(b.sequence_lengths[r], 50);
    EXPECT_LE(b.sequence_lengths[r], 100);
  }
  EXPECT_EQ(b.query_positions[6], -1);
  EXPECT_EQ(b.token_to_req[6], 0);
  EXPECT_EQ(b.query_start_loc, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Batch, SpeculativeRowsAreTheLastPositions) {
  const Batch b = make_batch(
      {.kind = "speculative", .requests = 2, .rows_per_request = 3, .context = 10, .ragged = false},
      Random(1, "b"));
  EXPECT_EQ(b.query_positions, (std::vector<int64_t>{7, 8, 9, 7, 8, 9}));
  EXPECT_EQ(b.token_to_req, (std::vector<int64_t>{0, 0, 0, 1, 1, 1}));
}

TEST(Batch, PrefillBeginsAtZeroAndMixedMixes) {
  const Batch p =
      make_batch({.kind = "prefill", .requests = 1, .rows_per_request = 4}, Random(1, "b"));
  EXPECT_EQ(p.query_positions, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(p.sequence_lengths[0], 4);
  const Batch m = make_batch(
      {.kind = "mixed", .requests = 3, .rows_per_request = 16, .context = 64}, Random(1, "b"));
  EXPECT_EQ(m.query_start_loc, (std::vector<int64_t>{0, 1, 5, 21}));
}

TEST(Batch, RefusesWhatMakesNoBatch) {
  EXPECT_THROW(make_batch({.kind = "decod"}, Random(1, "b")), std::invalid_argument);
  EXPECT_THROW(make_batch({.requests = -1}, Random(1, "b")), std::invalid_argument);
}

TEST(PageTable, GivesEveryRequestItsOwnPagesAndKeepsSpares) {
  const PageTable t =
      make_page_table({.tokens = {100, 1, 0, 64}, .page_size = 16, .width = 9, .spare_pages = 3},
                      Random(2, "pages"));
  EXPECT_EQ(t.pages, 7 + 1 + 0 + 4 + 3);
  std::set<int64_t> used;
  int64_t holes = 0;
  for (int64_t i = 0; i < t.table.count(); ++i) {
    const int64_t page = t.table.integer(i);
    if (page == -1) {
      ++holes;
      continue;
    }
    EXPECT_TRUE(used.insert(page).second);
    EXPECT_LT(page, t.pages);
  }
  EXPECT_EQ(used.size(), 12u);
  EXPECT_EQ(holes, 4 * 9 - 12);
  EXPECT_EQ(t.row(0, 17), t.table.integer(1) * 16 + 1);
  EXPECT_THROW(make_page_table({.tokens = {100}, .page_size = 16, .width = 6}, Random(2, "p")),
               std::invalid_argument);
}

TEST(PageTable, OrdersPagesAsAsked) {
  const PageTable i = make_page_table(
      {.tokens = {48}, .page_size = 16, .spare_pages = 0, .order = PageOrder::identity},
      Random(2, "p"));
  const PageTable r = make_page_table(
      {.tokens = {48}, .page_size = 16, .spare_pages = 0, .order = PageOrder::reversed},
      Random(2, "p"));
  for (int64_t w = 0; w < 3; ++w) {
    EXPECT_EQ(i.table.integer(w), w);
    EXPECT_EQ(r.table.integer(w), 2 - w);
  }
}

TEST(Cache, HoldsTheSameTokensInEveryLayoutAndPoisonElsewhere) {
  const PageTable table = make_page_table({.tokens = {21, 5}, .page_size = 8}, Random(3, "pages"));
  std::vector<double> first;
  for (const char* word : {"separate", "halves", "interleaved", "head_major", "padded"}) {
    KvCache c = make_kv_cache({.dtype = TK_BF16,
                               .pages = table.pages,
                               .page_size = 8,
                               .heads = 2,
                               .dim = 4,
                               .layout = cache_layout(word)});
    EXPECT_EQ(c.k.shape, (Shape{table.pages, 8, 2, 4}));
    fill_tokens(c.k, table, Random(3, "k"));
    fill_tokens(c.v, table, Random(3, "v"));
    std::vector<double> content;
    int64_t finite = 0;
    for (const Tensor* t : {&c.k, &c.v}) {
      for (int64_t i = 0; i < t->count(); ++i) finite += std::isfinite(t->real(i));
      for (const auto& [request, token] : {std::pair<int64_t, int64_t>{0, 20}, {1, 4}}) {
        const int64_t row = table.row(request, token);
        for (int64_t e = 0; e < 8; ++e) content.push_back(t->real(row * 8 + e));
      }
    }
    EXPECT_EQ(finite, 2 * 26 * 2 * 4) << word;  // the rows of 26 tokens, and nothing else
    if (first.empty()) first = content;
    EXPECT_EQ(content, first) << word;
  }
}

TEST(Cache, HalvesShareOneStorageAndGuardsStandAround) {
  const KvCache c = make_kv_cache({.dtype = TK_F16,
                                   .pages = 2,
                                   .page_size = 4,
                                   .heads = 1,
                                   .dim = 8,
                                   .layout = CacheLayout::halves,
                                   .guard = 32});
  EXPECT_EQ(c.k.storage, c.v.storage);
  EXPECT_EQ(c.v.offset - c.k.offset, 8 * 2);
  EXPECT_EQ(c.k.offset, 32 * 2);
  EXPECT_EQ(c.k.storage->bytes(), size_t(2 * (32 + 2 * 4 * 16 + 32)));
}

TEST(Selection, OverlapsNeighboursAsAsked) {
  for (const double jaccard : {0.0, 0.3, 0.7, 1.0}) {
    const Tensor s = make_selection(
        {.candidates = std::vector<int64_t>(6, 10000), .width = 500, .jaccard = jaccard},
        Random(4, "s"));
    for (int64_t r = 1; r < 6; ++r) EXPECT_NEAR(jaccard_of(s, r, r - 1), jaccard, 0.002);
  }
}

TEST(Selection, IsDistinctAscendingInRangeAndEndsInHoles) {
  const Tensor s =
      make_selection({.candidates = {7, 0, 3, 100}, .width = 5, .jaccard = 0.5}, Random(5, "s"));
  const int64_t count[] = {5, 0, 3, 5}, limit[] = {7, 0, 3, 100};
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t i = 0; i < 5; ++i) {
      const int64_t t = s.integer(r * 5 + i);
      if (i >= count[r])
        EXPECT_EQ(t, -1);
      else
        EXPECT_TRUE(t >= 0 && t < limit[r] && (i == 0 || t > s.integer(r * 5 + i - 1)));
    }
}

TEST(Selection, PlantsDuplicatesAndHoles) {
  const Tensor s = make_selection(
      {.candidates = {1000, 1000}, .width = 64, .duplicates = 6, .holes = 3}, Random(6, "s"));
  for (int64_t r = 0; r < 2; ++r) {
    std::multiset<int64_t> seen;
    for (int64_t i = 0; i < 64; ++i) seen.insert(s.integer(r * 64 + i));
    EXPECT_EQ(seen.count(-1), 3u);
    std::set<int64_t> distinct(seen.begin(), seen.end());
    distinct.erase(-1);
    EXPECT_LT(distinct.size(), 61u);
    EXPECT_GE(distinct.size(), 61u - 6u);
  }
}

constexpr Axis kAxes[] = {{"rows", "4", "rows"},
                          {"dtype", "bf16", "of q"},
                          {"lens", "1,2", "lengths"},
                          {"jaccard", "0.5", "overlap"},
                          {"lse", "1", "with lse"}};

TEST(Axes, ReadsValuesWithDefaults) {
  const Coordinates at{{"rows", "9"}};
  const Axes a("qsa.x", kAxes, at);
  EXPECT_EQ(a.integer("rows"), 9);
  EXPECT_EQ(a.dtype("dtype", toolkit::kHalf), TK_BF16);
  EXPECT_EQ(a.integers("lens"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(a.number("jaccard", 0, 1), 0.5);
  EXPECT_TRUE(a.flag("lse"));
}

std::string refusal(const Coordinates& at, const std::function<void(const Axes&)>& read) {
  try {
    read(Axes("qsa.x", kAxes, at));
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Axes, RefusalsNameAxisExpectedAndGot) {
  EXPECT_EQ(refusal({{"rows", "4x"}}, [](const Axes& a) { a.integer("rows"); }),
            "qsa.x: axis rows: expected an integer >= 0, got '4x'");
  EXPECT_EQ(refusal({{"rows", "-1"}}, [](const Axes& a) { a.integer("rows"); }),
            "qsa.x: axis rows: expected an integer >= 0, got '-1'");
  EXPECT_EQ(refusal({{"dtype", "i32"}}, [](const Axes& a) { a.dtype("dtype", toolkit::kHalf); }),
            "qsa.x: axis dtype: expected f16 or bf16, got 'i32'");
  EXPECT_EQ(refusal({{"row", "4"}}, [](const Axes&) {}),
            "qsa.x: unknown axis 'row', nearest is 'rows'; axes: rows, dtype, lens, jaccard, lse");
  EXPECT_NE(refusal({{"lens", "1,,2"}}, [](const Axes& a) { a.integers("lens"); }), "accepted");
  EXPECT_NE(refusal({{"lens", "1,"}}, [](const Axes& a) { a.integers("lens"); }), "accepted");
  EXPECT_NE(refusal({{"jaccard", "nan"}}, [](const Axes& a) { a.number("jaccard", 0, 1); }),
            "accepted");
}

TEST(Coordinates, ParseAndMakeAnId) {
  const Coordinates at = parse_coordinates("rows=4  lens=1,2");
  EXPECT_EQ(at.at("lens"), "1,2");
  EXPECT_EQ(case_id("qsa.x", "decode", kAxes, at), "qsa.x/decode:rows=4,lens=1,2");
  EXPECT_THROW(parse_coordinates("rows"), std::invalid_argument);
  EXPECT_THROW(parse_coordinates("rows=1 rows=2"), std::invalid_argument);
}

}  // namespace
}  // namespace harness
