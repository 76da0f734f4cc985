// SPDX-License-Identifier: Apache-2.0
// Roofs of a device whose speed is known: rows of their own, shares in the rows of kernels, and
// what is faster than its roof.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "run_tool.h"

using test::column;
using test::has;
using test::run_tool;

namespace {

const std::string kDevice =
    " --plugin " TOOLKIT_MEASURED_DEVICE " -d measured --launch stream --min-time 0.005 ";
const std::string kCase = " expand -a ctx=4000 -a topk=2048 ";

TEST(Roofs, EachIsARowThatSaysHowItWasMeasured) {
  const auto csv = test::scratch("roofs.csv");
  const auto ran = run_tool("qsa-bench roofs" + kDevice + "--csv " + csv);
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "2.00 us for each further launch"));
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(
      column(rows, "case_id"),
      (std::vector<std::string>{"roof.read/stream", "roof.empty/nodes-1", "roof.empty/nodes-11"}));
  EXPECT_EQ(column(rows, "bytes")[0], "1048576");
  EXPECT_NEAR(std::stod(column(rows, "gbps")[0]), 1, 1e-9);
  EXPECT_EQ(column(rows, "l2")[0], "cold");
  EXPECT_TRUE(has(column(rows, "repro")[0], "qsa-bench roofs -d measured:0"));
}

TEST(Roofs, HaveTheirOwnStateOfTheCache) {  // --l2 once did nothing
  EXPECT_EQ(run_tool("qsa-bench roofs --l2 warm" + kDevice).code, 2);
  const auto csv = test::scratch("l2.csv");
  run_tool("qsa-bench run" + kCase + "--roofs --l2 warm" + kDevice + "--csv " + csv);
  EXPECT_FALSE(has(column(test::parse_csv(test::read_file(csv)), "repro")[0], "--l2"));
}

TEST(Roofs, AWrongProbeIsAWrongResult) {
  const auto ran = run_tool("qsa-bench roofs" + kDevice, "MEASURED_WRONG=1");
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(has(ran.out, "expected the sum"));
}

TEST(Roofs, RowsOfTheRunAreHeldToThem) {
  const auto csv = test::scratch("rows.csv");
  const auto ran =
      run_tool("qsa-bench run" + kCase + "--roofs" + kDevice + "--csv " + csv, "MEASURED_GBPS=0.5");
  EXPECT_EQ(ran.code, 0) << ran.all();
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(column(rows, "roof_source").back(), "roof.read/stream, measured in this run");
  EXPECT_NEAR(std::stod(column(rows, "roof_gbps").back()), 1, 1e-9);
  EXPECT_NEAR(std::stod(column(rows, "roof_pct").back()), 50, 1);
}

TEST(Roofs, RowsOfIsolatedCasesAreHeldToThemToo) {  // once "unknown": the children had none
  const auto csv = test::scratch("isolated.csv");
  const auto ran =
      run_tool("qsa-bench run" + kCase + "--isolate --roofs" + kDevice + "--csv " + csv,
               "MEASURED_GBPS=0.5");
  EXPECT_EQ(ran.code, 0) << ran.all();
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(column(rows, "op"),
            (std::vector<std::string>{"roof.read", "roof.empty", "roof.empty", "qsa.expand"}));
  EXPECT_EQ(column(rows, "roof_source").back(), "roof.read/stream, measured in this run");
  EXPECT_NEAR(std::stod(column(rows, "roof_pct").back()), 50, 1);
  const auto impossible =
      run_tool("qsa-bench run" + kCase + "--isolate --roofs" + kDevice, "MEASURED_GBPS=100");
  EXPECT_EQ(impossible.code, 3) << impossible.all();
}

TEST(Roofs, AResumedRunGoesOnWithThoseThatItHas) {
  for (const std::string isolate : {"", " --isolate"}) {
    const auto csv = test::scratch("resumed" + isolate + ".csv");
    const std::string sweep = "qsa-bench run expand -a topk=2048 --resume --roofs" + isolate +
                              kDevice + "--csv '" + csv + "' ";
    EXPECT_EQ(run_tool(sweep + "-a ctx=4000").code, 0);
    EXPECT_EQ(run_tool(sweep + "-a ctx=4000,6000").code, 0);
    const auto rows = test::parse_csv(test::read_file(csv));
    EXPECT_EQ(column(rows, "op"), (std::vector<std::string>{"roof.read", "roof.empty", "roof.empty",
                                                            "qsa.expand", "qsa.expand"}));
    EXPECT_NEAR(std::stod(column(rows, "roof_pct").back()), 50, 1);
  }
}

TEST(Roofs, WithoutThemTheRoofIsUnknownAndThereIsNoPercentage) {  // B44
  const auto csv = test::scratch("unknown.csv");
  EXPECT_EQ(run_tool("qsa-bench run" + kCase + kDevice + "--csv " + csv).code, 0);
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(column(rows, "roof_source").back(), "unknown");
  EXPECT_EQ(column(rows, "roof_pct").back(), "");
}

TEST(Roofs, FasterThanItsRoofIsImpossibleAnd3) {
  const auto ran = run_tool("qsa-bench run" + kCase + "--roofs" + kDevice, "MEASURED_GBPS=100");
  EXPECT_EQ(ran.code, 3) << ran.all();
  EXPECT_TRUE(has(ran.out, "IMPOSSIBLE qsa.expand"));
  EXPECT_TRUE(has(ran.out, "roof.read/stream, measured in this run"));
}

// A management library that is none, where the loader finds it.
TEST(CardState, TheReasonOfALoweredClockStandsInTheRow) {
  const std::string library = test::scratch("libnvidia-ml.so.1"), csv = test::scratch("card.csv");
  std::filesystem::create_symlink(TOOLKIT_FAKE_NVML, library);
  const std::string folder = library.substr(0, library.rfind('/'));
  const std::string run = "qsa-bench run" + kCase +
                          "--plugin " TOOLKIT_MEASURED_DEVICE
                          " -d measured:1 --launch stream --min-time 0.005 ";
  const auto under = [&](const std::string& reasons) {
    return run_tool(run + "--csv " + csv,
                    "LD_LIBRARY_PATH=" + folder + " FAKE_NVML_REASONS=" + reasons);
  };
  EXPECT_EQ(under("0x4").code, 0);
  EXPECT_EQ(under("0x80").code, 3);
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(column(rows, "clock_mhz"), (std::vector<std::string>{"1980", "1980"}));
  EXPECT_EQ(column(rows, "throttled"), (std::vector<std::string>{"0", "1"}));
  EXPECT_TRUE(has(column(rows, "reason")[0], "clock held back by power cap"));
  EXPECT_TRUE(has(column(rows, "reason")[1], "throttled samples and no other"));
  EXPECT_TRUE(has(column(rows, "reason")[1], "clock held back by power brake"));
}

TEST(Roofs, CopiesTakeTurnsWhereTheyAreEnoughAndElseItSaysWhatHelps) {
  const auto csv = test::scratch("rotated.csv");
  EXPECT_EQ(run_tool("qsa-bench run" + kCase + kDevice + "--l2 rotate --csv " + csv).code, 0);
  const auto rows = test::parse_csv(test::read_file(csv));
  EXPECT_EQ(column(rows, "l2"), std::vector<std::string>{"rotate"});
  EXPECT_EQ(column(rows, "flush_bytes"), std::vector<std::string>{""});
}

}  // namespace
