// SPDX-License-Identifier: Apache-2.0
// What roofs make of a time: a share, unknown, above, impossible (B38, B44).
#include "harness/measure/ceilings.h"

#include <gtest/gtest.h>

namespace {

using harness::Cache;
using harness::Ceilings;
using harness::Work;

constexpr uint64_t kL2 = 50'000'000;

const Ceilings kRoofs{{4000, 4100, "roof.gather/512"},
                      {9000, 9200, "roof.read/l2"},
                      {600'000, 610'000, "roof.mma/bf16"},
                      {500'000, 510'000, "roof.mma/f16"}};

harness::Summary took(double us) { return harness::summarize(std::vector<double>(20, us)); }

harness::Row roof(std::string op, std::string id, std::string dtype, std::string l2, double bytes,
                  double flops, double us, std::string status = "pass") {
  harness::Row row;
  row.set("op", op);
  row.set("case_id", id);
  row.set("dtype", dtype);
  row.set("l2", l2);
  row.set("bytes", bytes);
  row.set("flops", flops);
  row.set("time_us_median", us);
  row.set("time_us_min", std::to_string(us / 2));  // text, as read back from a file
  row.set("status", status);
  return row;
}

TEST(Ceilings, AreTheBestOfTheRoofsRows) {
  const auto c = harness::ceilings_of(
      {roof("roof.read", "roof.read/stream", "u32", "cold", 4e6, 0, 1),
       roof("roof.copy", "roof.copy/stream", "u32", "cold", 3e6, 0, 1),
       roof("roof.read", "roof.read/l2", "u32", "warm", 9e6, 0, 1, "inconclusive"),
       roof("roof.mma", "roof.mma/f16", "f16", "warm", 0, 6e8, 1),
       roof("roof.mma", "roof.mma/bf16", "bf16", "warm", 0, 5e8, 1),
       roof("roof.empty", "roof.empty/nodes-1", "", "warm", 0, 0, 3)});
  EXPECT_DOUBLE_EQ(c.memory.median, 4000);
  EXPECT_DOUBLE_EQ(c.memory.fastest, 8000);
  EXPECT_EQ(c.memory.source, "roof.read/stream");
  EXPECT_DOUBLE_EQ(c.l2.median, 9000);
  EXPECT_DOUBLE_EQ(c.f16.median, 600'000);
  EXPECT_EQ(c.bf16.source, "roof.mma/bf16");
}

TEST(Ceilings, AWrongOrFailedProbeIsNone) {
  for (const char* status : {"fail", "error", "timeout", "crash"})
    EXPECT_EQ(harness::ceilings_of(
                  {roof("roof.read", "roof.read/stream", "u32", "cold", 4e6, 0, 1, status)})
                  .memory.median,
              0)
        << status;
}

TEST(Ceilings, AMemoryBoundCaseIsHeldToMemory) {
  const auto s = stand(kRoofs, {{400e6, 1e9}, 0, TK_BF16}, Cache::cold, kL2, took(200));
  EXPECT_DOUBLE_EQ(s.pct, 50);
  EXPECT_EQ(s.source, "roof.gather/512, measured in this run");
  EXPECT_EQ(s.roof_gbps, 4000);
  EXPECT_EQ(s.roof_gflops, 600'000);
  EXPECT_FALSE(s.impossible);
}

TEST(Ceilings, AComputeBoundCaseIsHeldToTheInstructionOfItsType) {
  const auto s = stand(kRoofs, {{1e6, 500e9}, 0, TK_F16}, Cache::cold, kL2, took(2000));
  EXPECT_DOUBLE_EQ(s.pct, 50);
  EXPECT_EQ(s.source, "roof.mma/f16, measured in this run");
}

TEST(Ceilings, WithoutRoofsItIsUnknownAndNoPercentage) {
  const auto s = stand({}, {{400e6, 1e9}, 0, TK_BF16}, Cache::cold, kL2, took(1));
  EXPECT_EQ(s.source, "unknown");
  EXPECT_EQ(s.pct, 0);
  EXPECT_FALSE(s.impossible);
}

TEST(Ceilings, FasterThanTheRoofsFastestSampleIsImpossible) {
  const Work work{{410e6, 0}, 0, TK_BF16};  // 100 us at 4100 GB/s
  EXPECT_TRUE(stand(kRoofs, work, Cache::cold, kL2, took(99)).impossible);
  const auto above = stand(kRoofs, work, Cache::cold, kL2, took(101));
  EXPECT_FALSE(above.impossible);
  EXPECT_GT(above.pct, 100);
  EXPECT_NE(above.reason.find("above its roof: 101 %"), std::string::npos) << above.reason;
}

TEST(Ceilings, NoiseThatReachesTheRoofIsNotImpossible) {
  std::vector<double> samples;
  for (int i = 0; i < 20; ++i) samples.push_back(i % 2 ? 90 : 104);
  EXPECT_FALSE(
      stand(kRoofs, {{410e6, 0}, 0, 0}, Cache::cold, kL2, harness::summarize(samples)).impossible);
}

TEST(Ceilings, WhatIsWrittenMayRestInTheL2) {
  const Work work{{82e6, 0}, 41'000'000, TK_BF16};  // half of it written: 10 us of reads
  EXPECT_FALSE(stand(kRoofs, work, Cache::cold, kL2, took(11)).impossible);
  EXPECT_TRUE(stand(kRoofs, work, Cache::cold, kL2, took(9)).impossible);
  EXPECT_TRUE(stand(kRoofs, work, Cache::cold, 1'000'000, took(11)).impossible);
}

TEST(Ceilings, AWarmCaseThatFitsIsHeldToTheL2) {
  const Work work{{9e6, 0}, 0, TK_BF16};
  const auto s = stand(kRoofs, work, Cache::warm, kL2, took(2));
  EXPECT_DOUBLE_EQ(s.pct, 50);
  EXPECT_EQ(s.roof_gbps, 9000);
  EXPECT_FALSE(stand(kRoofs, {{90e6, 0}, 0, 0}, Cache::warm, kL2, took(12)).impossible);
  EXPECT_TRUE(stand(kRoofs, work, Cache::cold, kL2, took(2)).impossible);
}

}  // namespace
