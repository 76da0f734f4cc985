// SPDX-License-Identifier: Apache-2.0
// The probes give what they have to, on both wave widths, and a wrong one is seen; the numbers that
// come of them on a device whose speed is known.
#include "harness/measure/roofs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "measured.h"

namespace {

using harness::Probe;
using harness::ProbeSet;

class ProbesOnSimt : public testing::TestWithParam<int> {
 protected:
  ProbesOnSimt()
      : registry_({TOOLKIT_BIN_DIR}, GetParam()),
        device_(registry_, "simt"),
        set_(
            device_, [&](auto op) { return registry_.implementations("simt", op); }, 1 << 16) {}
  static std::string run(const Probe& probe, const Probe::Width& width) {
    char message[512] = "";
    tk_call& call = width.call->call();
    call.message = message;
    call.message_bytes = sizeof message;
    probe.poison(width);
    return probe.implementation.op->run(&call) == TK_OK ? "" : message;
  }
  harness::Registry registry_;
  harness::Device device_;
  ProbeSet set_;
};

TEST_P(ProbesOnSimt, GiveWhatTheyHaveTo) {
  std::set<std::string> ids;
  for (const Probe& probe : set_.probes()) {
    ids.insert(probe.id);
    if (probe.op == "roof.mma") continue;  // 4096 products of each wave: too long here, see below
    for (const Probe::Width& width : probe.widths) {
      ASSERT_EQ(run(probe, width), "") << probe.id << " with " << width.text;
      EXPECT_EQ(probe.check(width), "") << probe.id << " with " << width.text;
    }
  }
  EXPECT_EQ(ids,
            (std::set<std::string>{"roof.read/stream", "roof.copy/memcpy", "roof.copy/stream",
                                   "roof.gather/256", "roof.gather/512", "roof.gather/1024",
                                   "roof.gather/2048", "roof.gather/4096", "roof.mma/bf16",
                                   "roof.mma/f16", "roof.empty/nodes-1", "roof.empty/nodes-11"}));
}

TEST_P(ProbesOnSimt, WhatIsNotWrittenIsSeen) {
  for (const Probe& probe : set_.probes()) {
    if (probe.op == "roof.empty") continue;
    probe.poison(probe.widths.front());
    EXPECT_NE(probe.check(probe.widths.front()), "") << probe.id;
  }
}

TEST_P(ProbesOnSimt, MatrixProductsAreExact) {
  for (const tk_dtype dtype : {TK_BF16, TK_F16}) {
    const uint16_t one = dtype == TK_BF16 ? 0x3f80 : 0x3c00;
    std::vector<uint16_t> a(256, one), b(256, one);
    std::vector<float> c(256, -1), sums(2, -1);
    harness::ProbeCall call("roof.mma");
    call.tensor("a", dtype, {16, 16}, a.data());
    call.tensor("b", dtype, {16, 16}, b.data());
    call.tensor("c", TK_F32, {16, 16}, c.data());
    call.tensor("sums", TK_F32, {2}, sums.data());
    call.scalar("blocks", 2);
    call.scalar("iterations", 3);
    const auto found = registry_.implementations("simt", "roof.mma");
    ASSERT_EQ(found.front().op->run(&call.call()), TK_OK);
    EXPECT_EQ(c, std::vector<float>(256, 48));  // 3 times 16 products of 1
    const float waves = 256.f / static_cast<float>(GetParam());
    EXPECT_EQ(sums, std::vector<float>(2, 48 * 256 * 4 * waves));
  }
}

INSTANTIATE_TEST_SUITE_P(Waves, ProbesOnSimt, testing::Values(32, 64));

TEST(Probes, ReadManyTimesGivesManyTimesTheSum) {
  harness::Registry registry({TOOLKIT_BIN_DIR});
  const harness::Device device(registry, "simt");
  alignas(16) uint32_t source[20], sums[3];
  for (uint32_t i = 0; i < 20; ++i) source[i] = 1u << i;
  harness::ProbeCall call("roof.read");
  call.tensor("source", TK_U32, {20}, source);
  call.tensor("sums", TK_U32, {3}, sums);
  call.scalar("blocks", 3);
  call.scalar("passes", 5);
  call.scalar("in_flight", 4);
  ASSERT_EQ(registry.implementations("simt", "roof.read").front().op->run(&call.call()), TK_OK);
  EXPECT_EQ(sums[0] + sums[1] + sums[2], 5u * ((1u << 20) - 1));
}

TEST(Roofs, TimesAreThoseOfTheDevice) {
  measure_test::Measured measured;
  const ProbeSet set(
      measured.device(),
      [&](auto op) { return measured.registry().implementations("measured", op); },
      harness::probe_bytes(measured.device()));
  EXPECT_EQ(harness::probe_bytes(measured.device()), 1u << 20);
  ASSERT_EQ(set.probes().size(), 3u);  // read/stream and two of empty: its L2 is too small to read
  harness::SamplingRules rules;
  rules.min_time_s = 1e-3;
  std::vector<harness::Roof> roofs;
  for (const Probe& probe : set.probes())
    roofs.push_back(set.measure(probe, harness::Launch::stream, rules));
  EXPECT_EQ(roofs[0].wrong, "");
  EXPECT_NEAR(roofs[0].time.median, 1048.576, 1e-6);
  EXPECT_EQ(roofs[0].cost.bytes, 1 << 20);
}

TEST(Roofs, AWrongProbeIsSeen) {
  ::setenv("MEASURED_WRONG", "1", 1);
  measure_test::Measured measured;
  const ProbeSet set(
      measured.device(),
      [&](auto op) { return measured.registry().implementations("measured", op); }, 1 << 16);
  harness::SamplingRules rules;
  rules.min_time_s = 1e-3;
  const auto roof = set.measure(set.probes().front(), harness::Launch::stream, rules);
  ::unsetenv("MEASURED_WRONG");
  EXPECT_NE(roof.wrong, "");
}

}  // namespace
