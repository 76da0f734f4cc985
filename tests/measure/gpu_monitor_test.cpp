// SPDX-License-Identifier: Apache-2.0
// The card's state, from a management library that is none.
#include "harness/measure/gpu_monitor.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "measured.h"

namespace {

using harness::GpuMonitor;

class GpuMonitorTest : public testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }
  static void forget() {
    ::unsetenv("FAKE_NVML_REASONS");
    ::unsetenv("FAKE_NVML_FAILS");
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  static bool present(const char* device, const char* visible) {
    forget();
    if (visible) ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const measure_test::Measured measured(device);
    return GpuMonitor(measured.device(), TOOLKIT_FAKE_NVML).present();
  }
};

TEST_F(GpuMonitorTest, NoLibraryIsNoReadingAndNoThrottling) {
  const measure_test::Measured measured;
  GpuMonitor monitor(measured.device(), "no-such-library.so");
  EXPECT_FALSE(monitor.present());
  monitor.begin();
  EXPECT_FALSE(monitor.throttled());
  EXPECT_EQ(monitor.readings().count, 0);
}

TEST_F(GpuMonitorTest, ReadsClockAndPowerAndLeavesOutWhatTheCardDoesNotTell) {
  const measure_test::Measured measured;
  GpuMonitor monitor(measured.device(), TOOLKIT_FAKE_NVML);
  ASSERT_TRUE(monitor.present());
  monitor.begin();
  EXPECT_FALSE(monitor.throttled());
  EXPECT_EQ(monitor.readings().count, 2);
  EXPECT_DOUBLE_EQ(monitor.readings().clock_mhz, 1980);
  EXPECT_DOUBLE_EQ(monitor.readings().power_w, 350.5);
  EXPECT_EQ(monitor.readings().temp_c, 0);
}

TEST_F(GpuMonitorTest, AReadingThatFailsIsNone) {  // once 0 MHz and 0 W in the means
  const measure_test::Measured measured;
  ::setenv("FAKE_NVML_FAILS", "1", 1);
  GpuMonitor monitor(measured.device(), TOOLKIT_FAKE_NVML);
  monitor.begin();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(monitor.throttled());
  EXPECT_EQ(monitor.readings().count, 4);
  EXPECT_EQ(monitor.readings().clocks, 2);
  EXPECT_DOUBLE_EQ(monitor.readings().clock_mhz, 1980);
  EXPECT_DOUBLE_EQ(monitor.readings().power_w, 350.5);
}

TEST_F(GpuMonitorTest, HeatAndSupplyThrottleThePowerCapDoesNot) {
  const measure_test::Measured measured;
  GpuMonitor monitor(measured.device(), TOOLKIT_FAKE_NVML);
  for (const auto& [reasons, throttled] :
       {std::pair{"0x4", false}, {"0x8", true}, {"0x20", true}, {"0x40", true}, {"0x80", true}}) {
    ::setenv("FAKE_NVML_REASONS", reasons, 1);
    EXPECT_EQ(monitor.throttled(), throttled) << reasons;
  }
  EXPECT_EQ(harness::throttle_words(0x44), "power cap, thermal slowdown by hardware");
  EXPECT_EQ(harness::throttle_words(0x1), "");
}

// The library counts all cards, the backend those that are visible.
TEST_F(GpuMonitorTest, FindsTheDevicesOwnCardOrNone) {
  EXPECT_TRUE(present("measured:1", nullptr));
  EXPECT_FALSE(present("measured:0", nullptr));  // its name is another
  EXPECT_TRUE(present("measured:0", "1"));
  EXPECT_TRUE(present("measured:1", "0,1"));
  EXPECT_TRUE(present("measured:0", "GPU-1"));
  EXPECT_FALSE(present("measured:0", "GPU-2"));
}

}  // namespace
