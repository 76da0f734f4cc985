// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

#include "harness/generate/fill.h"
#include "harness/tensors/case.h"
#include "harness/tensors/walk.h"

namespace harness {
namespace {

Tensor counting(int64_t n) {
  std::vector<int64_t> v;
  for (int64_t i = 0; i < n; ++i) v.push_back(i);
  return from_integers(TK_I32, v);
}

TEST(Tensor, ReadsElementsThroughItsStrides) {
  const Tensor t = view(counting(6), 0, {3, 2}, {1, 3});  // transposed
  EXPECT_FALSE(t.dense());
  const int64_t expected[] = {0, 3, 1, 4, 2, 5};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(t.integer(i), expected[i]);
  const Tensor p = t.packed();
  EXPECT_TRUE(p.dense());
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(p.integer(i), expected[i]);
  EXPECT_EQ(t.at({2, 1}), 5 * 4);
}

TEST(Tensor, ViewsMayRunBackwardsAndRepeat) {
  const Tensor back = view(counting(4), 3, {4}, {-1});
  EXPECT_EQ(back.integer(0), 3);
  EXPECT_EQ(back.integer(3), 0);
  const Tensor same = view(counting(4), 2, {1000000, 1}, {0, 1});
  EXPECT_EQ(same.integer(999999), 2);
}

TEST(Tensor, ViewsOutsideTheirStorageAreRefused) {
  const Tensor t = counting(6);
  EXPECT_NO_THROW(view(t, 0, {6}, {1}));
  EXPECT_NO_THROW(view(t, 6, {0}, {1}));
  EXPECT_THROW(view(t, 0, {7}, {1}), std::out_of_range);
  EXPECT_THROW(view(t, 1, {6}, {1}), std::out_of_range);
  EXPECT_THROW(view(t, -1, {1}, {1}), std::out_of_range);
  EXPECT_THROW(view(t, 0, {2}, {-1}), std::out_of_range);
  EXPECT_THROW(view(t, 0, {2}, {INT64_MAX}), std::out_of_range);
  EXPECT_THROW(view(t, INT64_MAX, {1}, {1}), std::out_of_range);
  EXPECT_THROW(view(t, 0, {1}, {}), std::out_of_range);
}

TEST(Tensor, ImpossibleShapesAreRefusedBeforeAnythingIsAllocated) {
  EXPECT_THROW(make_tensor(TK_F32, {INT64_MAX, 2}), std::length_error);
  EXPECT_THROW(make_tensor(TK_F64, {int64_t{1} << 61}), std::length_error);
  EXPECT_THROW(make_tensor(TK_F32, {-1}), std::invalid_argument);
  EXPECT_THROW(make_tensor(0, {1}), std::invalid_argument);
}

TEST(Tensor, StorageIsZeroAlignedAndNeverNull) {
  const Tensor t = make_tensor(TK_F32, {3});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 64, 0u);
  EXPECT_EQ(t.real(2), 0);
  EXPECT_NE(make_tensor(TK_F32, {0, 4}).data(), nullptr);
}

TEST(Tensor, WalkVisitsRowMajorAndStopsWhenTold) {
  const Tensor t = view(counting(12), 11, {2, 3}, {-6, -2});
  int64_t seen = 0;
  walk(t, [&](int64_t i, const std::byte* p) {
    EXPECT_EQ(p, t.element(i));
    return ++seen < 4;
  });
  EXPECT_EQ(seen, 4);
}

TEST(HostCall, GivesScalarsInEveryFormTheyHave) {
  Case c;
  c.op = "x";
  c.scalars = {{"a", "4"}, {"b", "0.5"}, {"c", "true"}, {"d", "e4m3fn"}};
  c.inputs.emplace("t", counting(3));
  const HostCall call(c);
  ASSERT_EQ(call.call().scalar_count, 4u);
  EXPECT_EQ(call.call().scalars[0]->integer, 4);
  EXPECT_EQ(call.call().scalars[0]->real, 4.0);
  EXPECT_EQ(call.call().scalars[1]->real, 0.5);
  EXPECT_EQ(call.call().scalars[2]->integer, 1);
  EXPECT_STREQ(call.call().scalars[3]->text, "e4m3fn");
  ASSERT_EQ(call.call().tensor_count, 1u);
  EXPECT_STREQ(call.call().tensors[0]->name, "t");
}

TEST(HostCall, GivesAnInPlaceTensorOnceAsItsResult) {
  Case c;
  c.inputs.emplace("cache", counting(3));
  TensorMap outputs;
  outputs.emplace("cache", counting(5));
  const HostCall call(c, outputs);
  ASSERT_EQ(call.call().tensor_count, 1u);
  EXPECT_EQ(call.call().tensors[0]->shape[0], 5);
}

}  // namespace
}  // namespace harness
