// SPDX-License-Identifier: Apache-2.0
// What every shipped plugin and the example promise across the C ABI.
#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "loaded.h"

using plugin_test::Call;
using plugin_test::ExpandCall;
using plugin_test::find_op;
using plugin_test::load;

namespace {

std::vector<std::string> shipped() {
  std::vector<std::string> names{"kernels-simt", "kernels-simt-w64"};
  if (TOOLKIT_WITH_CUDA) names.push_back("kernels-cuda");
  return names;
}

bool says(const char* message, const char* part) { return std::strstr(message, part) != nullptr; }

TEST(Abi, EveryShippedPluginOffersEveryOpOfTheToolkitSorted) {
  std::istringstream list(TOOLKIT_OPS);
  const std::set<std::string> all{std::istream_iterator<std::string>(list), {}};
  ASSERT_FALSE(all.empty());
  for (const auto& name : shipped()) {
    const tk_plugin* p = load(name);
    ASSERT_TRUE(p) << name;
    std::vector<std::string> ops;
    for (uint32_t i = 0; i < p->op_count; ++i) ops.emplace_back(p->ops[i]->name);
    EXPECT_TRUE(std::ranges::is_sorted(ops)) << name;
    for (const auto& op : all) EXPECT_GE(std::ranges::count(ops, op), 1) << name << " " << op;
    std::set<std::string> named;  // an op may have a tuned implementation beside the portable one
    for (uint32_t i = 0; i < p->op_count; ++i)
      EXPECT_TRUE(named.insert(p->ops[i]->name + std::string("/") + p->ops[i]->implementation).second)
          << name << " " << p->ops[i]->name << "/" << p->ops[i]->implementation << " twice";
  }
}

TEST(Abi, StructSizesAndVersionsAreFilled) {
  for (const auto& name : shipped()) {
    const tk_plugin* p = load(name);
    ASSERT_TRUE(p) << name;
    EXPECT_EQ(p->struct_size, sizeof(tk_plugin));
    EXPECT_EQ(p->abi_version, TK_ABI_VERSION);
    EXPECT_STRNE(p->version, "");
    ASSERT_EQ(p->runs_on, nullptr);
    ASSERT_TRUE(p->runtime);
    EXPECT_EQ(p->runtime->struct_size, sizeof(tk_runtime));
    for (uint32_t i = 0; i < p->op_count; ++i) {
      EXPECT_EQ(p->ops[i]->struct_size, sizeof(tk_op));
      EXPECT_STRNE(p->ops[i]->implementation, "");
      EXPECT_TRUE(p->ops[i]->plan) << name << " " << p->ops[i]->name;
    }
  }
}

TEST(Abi, AHostOfAnotherVersionGetsNothing) {
  auto names = shipped();
  names.push_back("example-expand");
  for (const auto& name : names) {
    void* library = dlopen(plugin_test::file_of(name).c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(library) << dlerror();
    const auto query =
        reinterpret_cast<tk_plugin_query_function>(dlsym(library, "tk_plugin_query"));
    ASSERT_TRUE(query);
    EXPECT_EQ(query(TK_ABI_VERSION + 1), nullptr) << name;
  }
}

TEST(Abi, APluginShowsNothingButItsQuery) {
  for (const auto& name : shipped()) {
    void* library = dlopen(plugin_test::file_of(name).c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(library) << dlerror();
    // Mangled names of device::op_table() and device::backend(): two backends in one process must
    // not share them.
    EXPECT_EQ(dlsym(library, "_ZN6device8op_tableEv"), nullptr) << name;
    EXPECT_EQ(dlsym(library, "_ZN6device7backendEv"), nullptr) << name;
  }
}

TEST(Abi, SimtAndTheExampleRunAnOpFromTheBareStructs) {
  for (const char* name : {"kernels-simt", "kernels-simt-w64", "example-expand"}) {
    const tk_plugin* p = load(name);
    ASSERT_TRUE(p);
    const tk_op* op = find_op(*p, "qsa.expand");
    ASSERT_TRUE(op) << name;
    ExpandCall expand;
    uint64_t bytes = 99;
    ASSERT_EQ(op->workspace(expand.call.get(), &bytes), TK_OK) << expand.call.message;
    EXPECT_EQ(bytes, 0u);
    ASSERT_EQ(op->run(expand.call.get()), TK_OK) << expand.call.message;
    if (p->runtime) {
      ASSERT_EQ(p->runtime->synchronize(nullptr), TK_OK) << p->runtime->last_error();
    }
    EXPECT_EQ(expand.indices, expand.right) << name;
  }
}

TEST(Abi, ABadCallNamesTensorExpectedAndGot) {
  for (const char* name : {"kernels-simt", "example-expand"}) {
    const tk_op* op = find_op(*load(name), "qsa.expand");
    ASSERT_TRUE(op);
    ExpandCall wide(3);  // K = 3 where token_topk / compress_ratio = 2
    uint64_t bytes = 0;
    EXPECT_EQ(op->workspace(wide.call.get(), &bytes), TK_INVALID);
    EXPECT_EQ(op->run(wide.call.get()), TK_INVALID);
    EXPECT_TRUE(says(wide.call.message, "block_indices") &&
                says(wide.call.message, "expected shape [R,2]") &&
                says(wide.call.message, "got shape [2,3]"))
        << wide.call.message;
    EXPECT_EQ(wide.indices, std::vector<int32_t>(22, 77)) << "a refused call has written";
  }
}

TEST(Abi, AMissingTensorAndAWrongDtypeAreNamed) {
  const tk_plugin* p = load("kernels-simt");
  ASSERT_TRUE(p);
  const tk_op* op = find_op(*p, "qsa.expand");
  ASSERT_TRUE(op);
  Call empty("qsa.expand");
  EXPECT_EQ(op->run(empty.get()), TK_INVALID);
  EXPECT_TRUE(says(empty.message, "block_indices") && says(empty.message, "got none"))
      << empty.message;
  float f = 0;
  Call floats("qsa.expand");
  floats.tensor("block_indices", TK_F32, {1, 1}, &f);
  EXPECT_EQ(op->run(floats.get()), TK_INVALID);
  EXPECT_TRUE(says(floats.message, "expected dtype i32 or i64") && says(floats.message, "got f32"))
      << floats.message;
}

TEST(Abi, AMessageIsCutToItsRoomAndMayBeAbsent) {
  const tk_op* op = find_op(*load("kernels-simt"), "qsa.expand");
  ASSERT_TRUE(op);
  Call empty("qsa.expand");
  tk_call call = *empty.get();
  char room[8] = "xxxxxxx";
  call.message = room;
  call.message_bytes = sizeof(room);
  EXPECT_EQ(op->run(&call), TK_INVALID);
  EXPECT_EQ(room[7], '\0');
  call.message = nullptr;
  call.message_bytes = 0;
  EXPECT_EQ(op->run(&call), TK_INVALID);
}

TEST(Abi, AWorkspaceThatIsTooSmallIsRefused) {
  const tk_op* op = find_op(*load("kernels-simt"), "qsa.select");
  if (!op) GTEST_SKIP() << "no qsa.select in this build";
  std::vector<float> q(4), k(4 * 4);
  std::vector<int32_t> zero(4, 0), length{16}, indices(7);
  Call select("qsa.select");
  select.tensor("q", TK_F32, {1, 1, 4}, q.data());
  select.tensor("k_cache", TK_F32, {1, 4, 1, 4}, k.data());
  select.tensor("page_table", TK_I32, {1, 1}, zero.data());
  select.tensor("token_to_req", TK_I32, {1}, zero.data());
  select.tensor("query_positions", TK_I32, {1}, zero.data());
  select.tensor("sequence_lengths", TK_I32, {1}, length.data());
  select.tensor("indices", TK_I32, {1, 7}, indices.data());
  select.scalar("compress_ratio", "4");
  select.scalar("token_topk", "4");
  uint64_t bytes = 0;
  ASSERT_EQ(op->workspace(select.get(), &bytes), TK_OK) << select.message;
  ASSERT_GT(bytes, 0u);
  EXPECT_EQ(op->run(select.get()), TK_INVALID);
  EXPECT_TRUE(says(select.message, "workspace: expected") && says(select.message, "got 0"))
      << select.message;
}

TEST(Abi, UnsupportedIsAnAnswerOfItsOwn) {
  const tk_plugin* p = load("example-unsupported");
  ASSERT_TRUE(p);
  ExpandCall expand;
  uint64_t bytes = 0;
  EXPECT_EQ(find_op(*p, "qsa.expand")->workspace(expand.call.get(), &bytes), TK_UNSUPPORTED);
  EXPECT_TRUE(says(expand.call.message, "because")) << expand.call.message;
}

}  // namespace
