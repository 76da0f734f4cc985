// SPDX-License-Identifier: Apache-2.0
// The simt runtime as a host of the C ABI sees it.
#include "device/runtime.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "executor.h"

namespace {

const tk_runtime& runtime() { return *device::backend().runtime; }

TEST(SimtRuntime, IsOneDeviceThatIsNeverTimed) {
  EXPECT_STREQ(device::backend().name, "simt");
  EXPECT_EQ(runtime().flags, 0u);
  int32_t count = 0;
  ASSERT_EQ(runtime().device_count(&count), TK_OK);
  EXPECT_EQ(count, 1);
  tk_device_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(runtime().device_info(0, &info), TK_OK);
  EXPECT_EQ(info.wave, SIMT_WAVE);
  EXPECT_EQ(info.arch, "simt" + std::to_string(SIMT_WAVE));
  EXPECT_EQ(info.name, "simt (host, " + std::to_string(SIMT_WAVE) + " lanes)");
  EXPECT_EQ(info.shared_bytes_per_block, SIMT_WAVE == 32 ? 166912u : 65536u);
}

TEST(SimtRuntime, RefusesAnotherDevice) {
  EXPECT_EQ(runtime().open(0), TK_OK);
  EXPECT_EQ(runtime().open(1), TK_INVALID);
  EXPECT_NE(std::string(runtime().last_error()).find("expected 0"), std::string::npos);
}

TEST(SimtRuntime, MemoryIsCopiedAndFilled) {
  void* p = nullptr;
  ASSERT_EQ(runtime().allocate(5, &p), TK_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, 0u);
  char out[6] = "-----";
  ASSERT_EQ(runtime().copy_in(p, "abcde", 5, nullptr), TK_OK);
  ASSERT_EQ(runtime().fill(static_cast<char*>(p) + 3, 'x', 2, nullptr), TK_OK);
  ASSERT_EQ(runtime().copy_out(out, p, 5, nullptr), TK_OK);
  EXPECT_STREQ(out, "abcxx");
  EXPECT_EQ(runtime().copy_in(nullptr, nullptr, 0, nullptr), TK_OK);
  runtime().release(p);
  ASSERT_EQ(runtime().allocate(0, &p), TK_OK);
  EXPECT_NE(p, nullptr);
  runtime().release(p);
  EXPECT_EQ(runtime().allocate(uint64_t{1} << 60, &p), TK_OUT_OF_MEMORY);
  EXPECT_EQ(p, nullptr);
}

TEST(SimtRuntime, HasStreamsButNeitherGraphsNorEvents) {
  void* stream = nullptr;
  ASSERT_EQ(runtime().stream_create(&stream), TK_OK);
  EXPECT_NE(stream, nullptr);
  EXPECT_EQ(runtime().synchronize(stream), TK_OK);
  EXPECT_EQ(runtime().capture_begin(stream), TK_UNSUPPORTED);
  EXPECT_NE(std::string(runtime().last_error()).find("no graphs"), std::string::npos);
  void* event = &stream;
  EXPECT_EQ(runtime().event_create(&event), TK_UNSUPPORTED);
  EXPECT_EQ(event, nullptr);
  EXPECT_NE(std::string(runtime().last_error()).find("no events"), std::string::npos);
  runtime().stream_destroy(stream);
}

TEST(SimtRuntime, OptionsAreOrderAndThreads) {
  for (const char* order : {"forward", "fwd", "reverse", "rev", "seed:17"})
    EXPECT_EQ(runtime().set_option("order", order), TK_OK) << order;
  EXPECT_EQ(simt::options().order, simt::Order::shuffled);
  EXPECT_EQ(simt::options().seed, 17u);
  EXPECT_EQ(runtime().set_option("order", "backwards"), TK_INVALID);
  EXPECT_NE(std::string(runtime().last_error()).find("forward, reverse or seed:N, got 'backwards'"),
            std::string::npos);
  EXPECT_EQ(runtime().set_option("threads", "3"), TK_OK);
  EXPECT_EQ(simt::options().os_threads, 3);
  for (const char* threads : {"0", "", "x", "3x", "257"})
    EXPECT_EQ(runtime().set_option("threads", threads), TK_INVALID) << threads;
  EXPECT_EQ(runtime().set_option("speed", "high"), TK_INVALID);
  simt::options() = {};
}

}  // namespace
