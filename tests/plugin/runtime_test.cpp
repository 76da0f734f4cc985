// SPDX-License-Identifier: Apache-2.0
// The runtimes behind the C ABI: simt everywhere, cuda with and without a GPU.
#include <numeric>

#include "loaded.h"

using plugin_test::ExpandCall;
using plugin_test::find_op;
using plugin_test::load;

namespace {

// Runs qsa.expand through the runtime's own memory and stream, as a tool does; captured into a
// graph on request.
void run_expand(const tk_plugin& plugin, bool captured) {
  const tk_runtime& r = *plugin.runtime;
  ASSERT_EQ(r.open(0), TK_OK) << r.last_error();
  void* stream = nullptr;
  ASSERT_EQ(r.stream_create(&stream), TK_OK) << r.last_error();
  ExpandCall host;
  std::vector<tk_tensor> tensors;
  std::vector<void*> memory;
  const tk_call* made = host.call.get();
  for (uint32_t i = 0; i < made->tensor_count; ++i) {
    tk_tensor t = *made->tensors[i];
    const uint64_t bytes = 4 * std::accumulate(t.shape, t.shape + t.rank, uint64_t{1},
                                               [](uint64_t a, int64_t b) { return a * b; });
    void* device = nullptr;
    ASSERT_EQ(r.allocate(bytes, &device), TK_OK) << r.last_error();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 256, 0u);
    ASSERT_EQ(r.copy_in(device, t.data, bytes, stream), TK_OK) << r.last_error();
    t.data = device;
    memory.push_back(device);
    tensors.push_back(t);
  }
  std::vector<const tk_tensor*> pointers;
  for (const auto& t : tensors) pointers.push_back(&t);
  tk_call call = *made;
  call.tensors = pointers.data();
  call.stream = stream;
  const tk_op* op = find_op(plugin, "qsa.expand");
  ASSERT_TRUE(op);
  void* graph = nullptr;
  if (captured) {
    call.flags = TK_CALL_CAPTURING;
    ASSERT_EQ(r.synchronize(stream), TK_OK);
    ASSERT_EQ(r.capture_begin(stream), TK_OK) << r.last_error();
  }
  ASSERT_EQ(op->run(&call), TK_OK) << host.call.message;
  if (captured) {
    ASSERT_EQ(r.capture_end(stream, &graph), TK_OK) << r.last_error();
    ASSERT_EQ(r.fill(tensors.back().data, 0x55, 22 * 4, stream), TK_OK);
    ASSERT_EQ(r.graph_launch(graph, stream), TK_OK) << r.last_error();
  }
  ASSERT_EQ(r.copy_out(host.indices.data(), tensors.back().data, 22 * 4, stream), TK_OK)
      << r.last_error();
  EXPECT_EQ(host.indices, host.right);
  if (graph) r.graph_destroy(graph);
  for (void* m : memory) r.release(m);
  r.stream_destroy(stream);
}

void unknown_option_is_refused(const tk_runtime& r) {
  EXPECT_EQ(r.set_option("no-such-option", "1"), TK_INVALID);
  EXPECT_NE(std::string(r.last_error()).find("no-such-option"), std::string::npos)
      << r.last_error();
}

TEST(SimtRuntime, RunsAnOpAndSaysThatItsTimesMeanNothing) {
  for (const char* name : {"kernels-simt", "kernels-simt-w64"}) {
    const tk_plugin* p = load(name);
    ASSERT_TRUE(p);
    EXPECT_EQ(p->runtime->flags & TK_RUNTIME_TIMED, 0u);
    int32_t count = 0;
    ASSERT_EQ(p->runtime->device_count(&count), TK_OK);
    EXPECT_GE(count, 1);
    tk_device_info info{};
    info.struct_size = sizeof(info);
    ASSERT_EQ(p->runtime->device_info(0, &info), TK_OK);
    EXPECT_EQ(info.wave, std::string(name) == "kernels-simt" ? 32 : 64);
    run_expand(*p, false);
    unknown_option_is_refused(*p->runtime);
  }
}

class CudaRuntime : public testing::Test {
 protected:
  void SetUp() override {
    if (!TOOLKIT_WITH_CUDA) GTEST_SKIP() << "this build has no kernels-cuda";
    plugin_ = load("kernels-cuda");
    ASSERT_TRUE(plugin_);
    status_ = plugin_->runtime->device_count(&count_);
  }
  const tk_runtime& runtime() const { return *plugin_->runtime; }
  const tk_plugin* plugin_ = nullptr;
  tk_status status_ = TK_OK;
  int32_t count_ = -1;
};

TEST_F(CudaRuntime, SaysWhyThereIsNoDeviceInOneLine) {
  if (status_ == TK_OK) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(status_, TK_UNSUPPORTED);
  EXPECT_EQ(count_, 0);
  const std::string why = runtime().last_error();
  EXPECT_NE(why.find("driver"), std::string::npos) << why;
  EXPECT_EQ(why.find('\n'), std::string::npos) << why;
}

TEST_F(CudaRuntime, EveryCallWithoutADeviceIsAnErrorWithATextAndNoCrash) {
  if (status_ == TK_OK) GTEST_SKIP() << "there is a GPU";
  const tk_runtime& r = runtime();
  void* p = nullptr;
  tk_device_info info{};
  info.struct_size = sizeof(info);
  double us = 0;
  EXPECT_EQ(r.device_info(0, &info), TK_ERROR);
  EXPECT_EQ(r.open(0), TK_ERROR);
  EXPECT_EQ(r.allocate(16, &p), TK_ERROR);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(r.stream_create(&p), TK_ERROR);
  EXPECT_EQ(r.event_create(&p), TK_ERROR);
  EXPECT_EQ(r.event_elapsed_us(nullptr, nullptr, &us), TK_ERROR);
  EXPECT_EQ(r.synchronize(nullptr), TK_ERROR);
  EXPECT_STRNE(r.last_error(), "");
  ExpandCall expand;
  EXPECT_EQ(find_op(*plugin_, "qsa.expand")->run(expand.call.get()), TK_ERROR);
  EXPECT_NE(std::string(expand.call.message).find("cudaError"), std::string::npos)
      << expand.call.message;
}

TEST_F(CudaRuntime, DescribesItsDevice) {
  if (status_ != TK_OK) GTEST_SKIP() << runtime().last_error();
  tk_device_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(runtime().device_info(0, &info), TK_OK) << runtime().last_error();
  EXPECT_EQ(info.wave, 32);
  EXPECT_EQ(std::string(info.arch).rfind("sm_", 0), 0u) << info.arch;
  EXPECT_STRNE(info.name, "");
  EXPECT_STRNE(info.driver, "");
  EXPECT_STRNE(info.toolkit, "");
  EXPECT_GT(info.memory_bytes, 1u << 30);
  EXPECT_GT(info.l2_bytes, 0u);
  EXPECT_GE(info.shared_bytes_per_block, 48u << 10);
  EXPECT_GT(info.multiprocessors, 0);
  tk_device_info small{};
  small.struct_size = 8;
  EXPECT_EQ(runtime().device_info(0, &small), TK_INVALID);
  EXPECT_EQ(runtime().open(count_), TK_ERROR);
}

TEST_F(CudaRuntime, RunsAnOpOnAStreamAndInAGraph) {
  if (status_ != TK_OK) GTEST_SKIP() << runtime().last_error();
  run_expand(*plugin_, false);
  run_expand(*plugin_, true);
}

TEST_F(CudaRuntime, MoreMemoryThanThereIsIsOutOfMemoryAndLeavesNoTrace) {
  if (status_ != TK_OK) GTEST_SKIP() << runtime().last_error();
  const tk_runtime& r = runtime();
  void* p = nullptr;
  EXPECT_EQ(r.allocate(uint64_t{1} << 50, &p), TK_OUT_OF_MEMORY);
  EXPECT_NE(std::string(r.last_error()).find("1125899906842624 bytes"), std::string::npos)
      << r.last_error();
  run_expand(*plugin_, false);
}

TEST_F(CudaRuntime, TimesWorkByEvents) {
  if (status_ != TK_OK) GTEST_SKIP() << runtime().last_error();
  const tk_runtime& r = runtime();
  EXPECT_TRUE(r.flags & TK_RUNTIME_TIMED);
  EXPECT_TRUE(r.flags & TK_RUNTIME_GRAPHS);
  ASSERT_EQ(r.open(0), TK_OK);
  void *begin = nullptr, *end = nullptr, *memory = nullptr, *stream = nullptr;
  const uint64_t bytes = 1 << 28;
  ASSERT_EQ(r.stream_create(&stream), TK_OK);
  ASSERT_EQ(r.event_create(&begin), TK_OK);
  ASSERT_EQ(r.event_create(&end), TK_OK);
  ASSERT_EQ(r.allocate(bytes, &memory), TK_OK);
  ASSERT_EQ(r.event_record(begin, stream), TK_OK);
  ASSERT_EQ(r.fill(memory, 1, bytes, stream), TK_OK);
  ASSERT_EQ(r.event_record(end, stream), TK_OK);
  double us = 0;
  ASSERT_EQ(r.event_elapsed_us(begin, end, &us), TK_OK) << r.last_error();
  EXPECT_GT(us, 1.0);  // 256 MiB at 256 TB/s
  EXPECT_LT(us, 1e6);
  r.release(memory);
  r.event_destroy(begin);
  r.event_destroy(end);
  r.stream_destroy(stream);
}

TEST_F(CudaRuntime, RefusesOptions) { unknown_option_is_refused(runtime()); }

}  // namespace
