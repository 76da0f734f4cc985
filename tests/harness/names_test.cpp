// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/names.h"

#include <gtest/gtest.h>

#include "text.h"

namespace harness {
namespace {

std::string refusal(std::string_view typed) {
  try {
    return "resolved to " + std::string(resolve_op(typed).op());
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
}

TEST(ResolveOp, TakesFullAndBareNames) {
  EXPECT_EQ(refusal("qsa.expand"), "resolved to qsa.expand");
  EXPECT_EQ(refusal("expand"), "resolved to qsa.expand");
}

TEST(ResolveOp, NamesTheNearestOp) {
  EXPECT_TRUE(has(refusal("qsa.expnad"), "nearest is 'qsa.expand'"));
  EXPECT_TRUE(has(refusal("expnad"), "nearest is 'qsa.expand'"));
  EXPECT_TRUE(has(refusal("nosuchop"), "nearest is"));
}

TEST(ResolveOp, ABareWordOfTwoFamiliesNamesBoth) {
  EXPECT_EQ(refusal("merge"), "op 'merge' is in two families: write qsa.merge or tq.merge");
}

TEST(Nearest, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(nearest("rows", {"cache", "row", "slot_mapping"}), "row");
  EXPECT_EQ(nearest("quantize", {"cache", "row"}), "");
  EXPECT_EQ(nearest_hint("x", {}), "");
}

TEST(Cards, AreSortedAndHaveWhatAnOpNeeds) {
  std::string before;
  for (const Card* c : cards()) {
    EXPECT_LT(before, std::string(c->op()));
    before = c->op();
    EXPECT_EQ(find_card(c->op()), c);
    EXPECT_NE(reference::find(c->op()), nullptr) << c->op() << " has no oracle";
    EXPECT_FALSE(c->suite().empty()) << c->op();
  }
}

}  // namespace
}  // namespace harness
