// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/writer.h"

#include "files.h"
#include "harness/dumps/case_loader.h"
#include "harness/generate/paged.h"

namespace harness {
namespace {

using WriterTest = Files;

void expect_same(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  const Tensor p = a.packed(), q = b.packed();
  EXPECT_EQ(std::string(reinterpret_cast<char*>(p.data()),
                        size_t(p.count() * toolkit::bytes_of(p.dtype))),
            std::string(reinterpret_cast<char*>(q.data()),
                        size_t(q.count() * toolkit::bytes_of(q.dtype))));
}

TEST_F(WriterTest, EveryDtypeComesBackBitForBit) {
  TensorMap all;
  for (const auto& d : toolkit::kDtypes) {
    if (d.safetensors.empty()) continue;
    Tensor t = make_tensor(d.dtype, {3, 5});
    fill_bytes(t, Random(1, d.name));
    all.emplace(d.name, t);
  }
  all.emplace("empty", make_tensor(TK_F32, {0, 7}));
  all.emplace("scalar", from_reals(TK_F32, {2.5}, {}));
  write_safetensors(path("t.safetensors"), all, {{"op", "x"}});
  const Dump d = Dump::open(path("t.safetensors"));
  EXPECT_EQ(d.entries().size(), all.size());
  EXPECT_EQ(d.metadata().at("op"), "x");
  for (const auto& [name, t] : all) expect_same(d.tensor(name), t);
  EXPECT_THROW(write_safetensors(path("u.safetensors"), {{"x", make_tensor(TK_E4B15, {1})}}, {}),
               std::invalid_argument);
}

TEST_F(WriterTest, NothingIsStillAFile) {
  write_safetensors(path("t.safetensors"), {}, {});
  EXPECT_TRUE(Dump::open(path("t.safetensors")).entries().empty());
}

TEST_F(WriterTest, StridesAndSharedStorageSurvive) {
  KvCache c = make_kv_cache({.dtype = TK_BF16,
                             .pages = 3,
                             .page_size = 4,
                             .heads = 2,
                             .dim = 8,
                             .layout = CacheLayout::halves});
  fill_normal(c.k, Random(1, "k"));
  fill_normal(c.v, Random(1, "v"));
  const Tensor back = view(from_integers(TK_I32, {1, 2, 3, 4}), 3, {2, 4}, {0, -1});
  write_safetensors(path("t.safetensors"), {{"k_cache", c.k}, {"v_cache", c.v}, {"back", back}},
                    {});
  const Dump d = Dump::open(path("t.safetensors"));
  const Tensor k = d.tensor("k_cache"), v = d.tensor("v_cache");
  EXPECT_EQ(k.strides, c.k.strides);
  EXPECT_EQ(v.offset - k.offset, c.v.offset - c.k.offset);
  expect_same(k, c.k);
  expect_same(v, c.v);
  EXPECT_EQ(d.tensor("back").strides, (Shape{0, -1}));
  expect_same(d.tensor("back"), back);
  int storages = 0;
  for (const DumpEntry& e : d.entries()) storages += d.is_storage(e.name);
  EXPECT_EQ(storages, 2);  // one for K and V together
}

TEST_F(WriterTest, NpyComesBack) {
  for (const tk_dtype dtype :
       {TK_F16, TK_F32, TK_F64, TK_I8, TK_I16, TK_I32, TK_I64, TK_U8, TK_U16, TK_U32, TK_U64}) {
    Tensor t = make_tensor(dtype, {2, 3});
    fill_bytes(t, Random(2, "npy"));
    write_npy(path("t.npy"), t);
    expect_same(Dump::open(path("t.npy")).tensor(""), t);
  }
  const Tensor transposed = view(from_integers(TK_I32, {0, 1, 2, 3, 4, 5}), 0, {3, 2}, {1, 3});
  write_npy(path("t.npy"), transposed);
  expect_same(Dump::open(path("t.npy")).tensor(""), transposed);
  EXPECT_THROW(write_npy(path("t.npy"), make_tensor(TK_BF16, {1})), std::invalid_argument);
}

TEST_F(WriterTest, AnUnwritablePlaceIsNamed) {
  EXPECT_THROW(write_npy(path("nowhere/t.npy"), make_tensor(TK_F32, {1})), BadFile);
  EXPECT_FALSE(std::filesystem::exists(path("nowhere")));
}

TEST_F(WriterTest, ARecordedCaseLoadsAgain) {
  Case c;
  c.op = "qsa.store";
  c.inputs = {{"cache", make_tensor(TK_F16, {2, 4, 1, 3})},
              {"slot_mapping", from_integers(TK_I64, {5})},
              {"rows", from_reals(TK_F16, {1, 2, 3}, {1, 3})}};
  c.actual.emplace("cache", make_tensor(TK_F16, {2, 4, 1, 3}));
  write_case(path("t.safetensors"), c);
  const Case back = load_case({path("t.safetensors")});
  EXPECT_EQ(back.op, "qsa.store");
  EXPECT_EQ(back.inputs.size(), 3u);
  ASSERT_EQ(back.actual.size(), 1u);
  expect_same(back.actual.at("cache"), c.actual.at("cache"));
}

}  // namespace
}  // namespace harness
