// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/case_loader.h"

#include <gtest/gtest.h>

#include "files.h"
#include "harness/dumps/writer.h"
#include "harness/generate/fill.h"
#include "text.h"

namespace harness {
namespace {

class CaseLoader : public Files {
 protected:
  CaseLoader() {
    tensors_ = {{"block_indices", from_integers(TK_I32, {1, 0}, {1, 2})},
                {"query_positions", from_integers(TK_I32, {8})},
                {"sequence_lengths", from_integers(TK_I32, {9})},
                {"token_to_req", from_integers(TK_I32, {0})}};
    metadata_ = {
        {"op", "qsa.expand"}, {"compress_ratio", "4"}, {"token_topk", "8"}, {"note", "ignored"}};
  }
  std::string file() const {
    write_safetensors(path("t.safetensors"), tensors_, metadata_);
    return path("t.safetensors");
  }
  std::string refused(const LoadOptions& options = {}) const {
    try {
      load_case({file()}, options);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "accepted";
  }
  TensorMap tensors_;
  ScalarMap metadata_;
};

TEST_F(CaseLoader, SortsTensorsByTheirNames) {
  tensors_.emplace("expected.indices", make_tensor(TK_I32, {1, 11}));
  tensors_.emplace("actual.indices", make_tensor(TK_I32, {1, 11}));
  tensors_.emplace("scratch", make_tensor(TK_I32, {1}));
  metadata_["preset"] = "toy";
  const Case c = load_case({file()});
  EXPECT_EQ(c.op, "qsa.expand");
  EXPECT_EQ(c.preset, "toy");
  EXPECT_EQ(c.inputs.size(), 4u);
  EXPECT_TRUE(c.expected.contains("indices"));
  EXPECT_TRUE(c.actual.contains("indices"));
  EXPECT_EQ(c.scalars, (ScalarMap{{"compress_ratio", "4"}, {"token_topk", "8"}}));
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_TRUE(has(c.notes[0], "'scratch' is not used by qsa.expand"));
}

TEST_F(CaseLoader, ViolationsNameTensorExpectedAndGot) {
  tensors_.erase("token_to_req");
  EXPECT_EQ(refused(), "qsa.expand: token_to_req: expected a tensor of that name, got none");
  tensors_["token_to_req"] = make_tensor(TK_F32, {1});
  EXPECT_EQ(refused(), "qsa.expand: token_to_req: expected dtype i32 or i64, got f32");
  tensors_["token_to_req"] = make_tensor(TK_I32, {2});
  EXPECT_EQ(
      refused(),
      "qsa.expand: token_to_req: expected shape [R] with R = 1 as in block_indices, got shape [2]");
}

TEST_F(CaseLoader, ScalarsAreCheckedAndSetWins) {
  metadata_.erase("compress_ratio");
  EXPECT_EQ(refused(), "qsa.expand: compress_ratio: expected a scalar of that name, got none");
  EXPECT_EQ(refused({.set = {{"compress_ratio", "4"}}}), "accepted");
  EXPECT_EQ(refused({.set = {{"compress_ratio", "four"}}}),
            "qsa.expand: compress_ratio: expected an integer, got 'four'");
  EXPECT_EQ(refused({.set = {{"compress_ratios", "4"}}}),
            "--set compress_ratios=4: qsa.expand has no scalar of that name, nearest is "
            "'compress_ratio'");
  metadata_["compress_ratio"] = "3";
  EXPECT_EQ(load_case({file()}, {.set = {{"compress_ratio", "4"}}}).scalars.at("compress_ratio"),
            "4");
}

TEST_F(CaseLoader, AnIntegerIsDigits) {
  for (const char* text : {" 4", "4 ", "true", "0x4", "", "4.0", "99999999999999999999"}) {
    metadata_["compress_ratio"] = text;
    EXPECT_EQ(refused(),
              "qsa.expand: compress_ratio: expected an integer, got '" + std::string(text) + "'");
  }
  metadata_["compress_ratio"] = std::string("4\0x", 3);
  EXPECT_TRUE(has(refused(), "metadata compress_ratio: expected text without control characters"));
}

TEST_F(CaseLoader, AWidthBeyond64BitsIsRefused) {
  tensors_["block_indices"] = from_integers(TK_I32, {1}, {1, 1});
  metadata_["compress_ratio"] = metadata_["token_topk"] = "9223372036854775807";
  EXPECT_EQ(refused(), "qsa.expand: token_topk: expected at most 0, got 9223372036854775807");
}

TEST_F(CaseLoader, TablesOfMorePlacesThan64BitsCountAreRefused) {
  const Tensor q = from_reals(TK_F32, {1}, {1, 1, 1}), id = from_integers(TK_I32, {0});
  const int64_t wide = int64_t{1} << 31;
  tensors_ = {{"q", q}, {"token_to_req", id}, {"query_positions", id}, {"sequence_lengths", id}};
  tensors_["keys"] = from_reals(TK_F32, {1}, {1});
  tensors_["pages"] = id;
  metadata_ = {{"op", "qsa.score"}, {"compress_ratio", "4"}};
  const std::string tail = std::to_string(wide);
  metadata_["view.k_cache"] = "storage=keys offset=0 shape=1," + tail + ",1,1 strides=0,0,0,0";
  metadata_["view.page_table"] = "storage=pages offset=0 shape=1," + tail + " strides=0,0";
  EXPECT_EQ(refused(),
            "qsa.score: page_table: expected a number of places (columns times pages of "
            "2147483648) below 2^60, got shape [1,2147483648]");
}

TEST_F(CaseLoader, ResultsMustHaveTheContractsShape) {
  tensors_["actual.indices"] = make_tensor(TK_I32, {1, 10});
  EXPECT_EQ(refused(), "qsa.expand: actual.indices: expected i32 [1,11], got i32 [1,10]");
  tensors_.erase("actual.indices");
  tensors_["expected.indices"] = make_tensor(TK_I64, {1, 11});
  EXPECT_EQ(refused(), "qsa.expand: expected.indices: expected i32 [1,11], got i64 [1,11]");
}

TEST_F(CaseLoader, AMisspeltResultIsNotIgnored) {
  tensors_["actual.indicies"] = make_tensor(TK_I32, {1, 11});
  EXPECT_TRUE(has(refused(), "nearest is 'indices'"));
}

TEST_F(CaseLoader, ABareOutputIsNotedWithTheRightSpelling) {
  tensors_["indices"] = make_tensor(TK_I32, {1, 11});
  EXPECT_TRUE(has(load_case({file()}).notes.at(0), "actual.indices or expected.indices"));
}

TEST_F(CaseLoader, TheOpComesFromTheOptionOrTheFile) {
  metadata_["op"] = "qsa.expnad";
  EXPECT_TRUE(has(refused(), "unknown op 'qsa.expnad', nearest is 'qsa.expand'"));
  EXPECT_EQ(refused({.op = "qsa.expand"}), "accepted");
  EXPECT_EQ(refused({.op = "expand"}), "accepted");
  metadata_.erase("op");
  EXPECT_TRUE(has(refused(), "--op NAME"));
}

TEST_F(CaseLoader, MapsForeignNames) {
  auto node = tensors_.extract("token_to_req");
  node.key() = "req_ids";
  tensors_.insert(std::move(node));
  EXPECT_EQ(refused({.map = {{"token_to_req", "req_ids"}}}), "accepted");
  EXPECT_TRUE(has(refused({.map = {{"token_to_req", "req_id"}}}),
                  "no file has a tensor 'req_id', nearest is 'req_ids'"));
  EXPECT_TRUE(has(refused({.map = {{"token_to_rex", "req_ids"}}}), "has no tensor 'token_to_rex'"));
}

TEST_F(CaseLoader, BuildsACaseFromNpyFiles) {
  std::vector<std::string> files;
  for (const auto& [name, t] : tensors_) {
    files.push_back(path(name + ".npy"));
    write_npy(files.back(), t);
  }
  const LoadOptions scalars{.op = "qsa.expand",
                            .set = {{"compress_ratio", "4"}, {"token_topk", "8"}}};
  EXPECT_EQ(load_case(files, scalars).inputs.size(), 4u);

  LoadOptions named = scalars;
  tensors_.erase("token_to_req");
  named.tensors["token_to_req"] = path("token_to_req.npy");
  EXPECT_EQ(load_case({file()}, named).inputs.size(), 4u);
  named.tensors["token_to_req"] = path("t.safetensors") + ":query_positions";
  EXPECT_EQ(load_case({file()}, named).inputs.at("token_to_req").integer(0), 8);
  named.tensors["token_to_req"] = path("t.safetensors") + ":nothing";
  EXPECT_THROW(load_case({file()}, named), BadFile);
  named.tensors["token_to_req"] = path("t.safetensors");
  EXPECT_THROW(load_case({file()}, named), BadFile);  // several tensors and no key
}

TEST_F(CaseLoader, ReadsTheSameBitsAsAnotherDtype) {
  const LoadOptions as{.op = "qsa.store", .as = {{"cache", "bf16"}, {"rows", "bf16"}}};
  tensors_ = {{"cache", make_tensor(TK_U16, {1, 1, 1, 1})},
              {"rows", from_integers(TK_U16, {0x3f80}, {1, 1})},
              {"slot_mapping", from_integers(TK_I64, {0})}};
  EXPECT_EQ(load_case({file()}, as).inputs.at("rows").real(0), 1.0);
  EXPECT_TRUE(has(refused({.op = "qsa.store", .as = {{"rows", "f32"}}}),
                  "a dtype as wide as the file's u16"));
  EXPECT_TRUE(has(refused({.op = "qsa.store", .as = {{"row", "bf16"}}}), "nearest is 'rows'"));
}

TEST_F(CaseLoader, ATensorGivenTwiceIsRefused) {
  const std::string first = file();
  write_npy(path("token_to_req.npy"), tensors_["token_to_req"]);
  EXPECT_THROW(load_case({first, path("token_to_req.npy")}), BadFile);
}

TEST_F(CaseLoader, AnUnusedTensorOfUnknownDtypeIsNoError) {
  tensors_.clear();
  const std::string f = write(
      "u.safetensors",
      safetensors_bytes(
          R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"rows":{"dtype":"U8","shape":[1,1],"data_offsets":[1,2]},)"
          R"("cache":{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[2,3]},)"
          R"("slot_mapping":{"dtype":"I64","shape":[1],"data_offsets":[3,11]}})",
          std::string(11, '\0')));
  EXPECT_EQ(load_case({f}, {.op = "qsa.store"}).inputs.size(), 3u);
}

TEST(SplitAssignment, NamesTheFlag) {
  EXPECT_EQ(split_assignment("--set", "k=v=w"), (std::pair<std::string, std::string>{"k", "v=w"}));
  EXPECT_THROW(split_assignment("--set", "k"), std::invalid_argument);
  EXPECT_THROW(split_assignment("--set", "=v"), std::invalid_argument);
}

}  // namespace
}  // namespace harness
