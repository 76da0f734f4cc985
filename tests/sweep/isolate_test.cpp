// SPDX-License-Identifier: Apache-2.0
// One case of five faults, hangs, throws or ends the process: it costs one row (B43).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/run/message.h"
#include "run_tool.h"

using test::column;
using test::fake;
using test::has;
using test::parse_csv;
using test::run_tool;

namespace {

using Words = std::vector<std::string>;

const std::string kFive = " expand -a requests=1:5 --isolate --csv - -q --timeout 10 ";
const std::string kBench = " --launch stream --min-time 0.001 --max-noise 100000 ";

struct Bad {
  const char* implementation;
  const char* status;
  const char* reason;
};

const Bad kBad[] = {
    {"third-faults", "crash", "killed by signal 11 (Segmentation fault)"},
    {"third-hangs", "timeout", "did not end within 10 s (--timeout)"},
    {"third-throws", "error", "the fake kernel throws, \"for once\""},
    {"third-exits", "crash", "exit code 9 in the middle of the case: the fake kernel calls exit"},
    {"third-breaks-context", "error", "the fake kernel, said \"no\""},
};

void expect_four_good_rows_and(const Bad& bad, const test::Ran& ran) {
  SCOPED_TRACE(bad.implementation);
  EXPECT_EQ(ran.code, 5) << ran.all();
  const auto rows = parse_csv(ran.out);
  EXPECT_EQ(column(rows, "status"), (Words{"pass", "pass", bad.status, "pass", "pass"}));
  EXPECT_TRUE(has(column(rows, "reason").at(2), bad.reason));
  EXPECT_EQ(column(rows, "impl").at(2), std::string("fake/") + bad.implementation);
  EXPECT_TRUE(has(ran.err, "ERROR 1 of 5"));
}

TEST(Isolate, VerifierLosesOneRow) {
  for (const auto& bad : kBad)
    expect_four_good_rows_and(bad, run_tool("qsa-verify run" + kFive + fake(bad.implementation)));
}

TEST(Isolate, BenchLosesOneRow) {
  for (const auto& bad : kBad)
    expect_four_good_rows_and(
        bad, run_tool("qsa-bench run" + kFive + kBench + fake(bad.implementation)));
}

// Real kernels; tests/sweep/third_case.cu is also what a GPU is tried with.
TEST(Isolate, AKernelOnSimtCostsOneRow) {
  const Bad bad[] = {
      {"third-faults", "crash", "killed by signal 11 (Segmentation fault)"},
      {"third-hangs", "timeout", "did not end within 5 s (--timeout)"},
      {"third-throws", "error", "thrown for three rows"},
  };
  for (const auto& b : bad) {
    SCOPED_TRACE(b.implementation);
    const auto ran = run_tool(
        "qsa-verify run expand -a requests=1:5 --isolate --timeout 5 --csv - -q -d simt "
        "--plugin " TOOLKIT_THIRD_CASE " --impl " +
        std::string(b.implementation));
    EXPECT_EQ(ran.code, 5) << ran.all();
    const auto rows = parse_csv(ran.out);
    EXPECT_EQ(column(rows, "status"), (Words{"pass", "pass", b.status, "pass", "pass"}));
    EXPECT_TRUE(has(column(rows, "reason").at(2), b.reason));
    EXPECT_TRUE(has(ran.err, "ERROR 1 of 5"));
  }
}

const std::string kGolden = TOOLKIT_SOURCE_DIR "/datasets/golden/qsa.expand/";

// The second of three dumps has three rows.
void expect_two_good_dumps(const Bad& bad, const test::Ran& ran) {
  SCOPED_TRACE(bad.implementation);
  EXPECT_EQ(ran.code, 5) << ran.all();
  const auto rows = parse_csv(ran.out);
  EXPECT_EQ(column(rows, "status"), (Words{"pass", bad.status, "pass"}));
  EXPECT_EQ(column(rows, "case_id").at(1), kGolden + "decode.safetensors");
  EXPECT_TRUE(has(column(rows, "reason").at(1), bad.reason));
  EXPECT_EQ(column(rows, "impl").at(1), std::string("fake/") + bad.implementation);
}

TEST(Isolate, OfLoadedAndReplayedDumpsOneIsLost) {
  for (const auto& bad : kBad) {
    std::string files, loaded;
    for (const std::string name : {"i64", "decode", "len-short"}) {
      const std::string file = kGolden + name + ".safetensors";
      files += " " + file;
      loaded += " --load " + file;
    }
    const std::string how = " --isolate --csv - -q --timeout 10 " + fake(bad.implementation);
    expect_two_good_dumps(bad, run_tool("qsa-verify replay" + files + how));
    expect_two_good_dumps(bad, run_tool("qsa-bench run expand" + loaded + how + kBench));
  }
}

TEST(Isolate, ReplayedResultsAreJudgedAndAFileThatIsNoDumpIs2) {
  const std::string candidates = TOOLKIT_SOURCE_DIR "/tests/data/candidates/";
  const auto ran =
      run_tool("qsa-verify replay --isolate --csv - -q " + candidates +
               "qsa.expand.decode.right.safetensors " + candidates +
               "qsa.expand.decode.token-off-by-one.safetensors " TOOLKIT_SOURCE_DIR "/README.md");
  EXPECT_EQ(column(parse_csv(ran.out), "status"), (Words{"pass", "fail", "error"})) << ran.all();
  EXPECT_EQ(ran.code, 1);
}

TEST(Isolate, OtherImplementationsOfTheCaseKeepTheirRows) {
  const auto ran =
      run_tool("qsa-verify run" + kFive + fake("third-faults,third-breaks-context,fourth-hangs"));
  Words expected(15, "pass");
  expected[6] = "crash";
  expected[7] = "error";
  expected[11] = "timeout";
  EXPECT_EQ(column(parse_csv(ran.out), "status"), expected) << ran.all();
}

// Without --isolate a broken context fails all that follows: this is what isolation is for.
TEST(Isolate, WithoutItABrokenContextLeaks) {
  const auto ran =
      run_tool("qsa-verify run expand -a requests=1:5 --csv - -q " + fake("third-breaks-context"));
  EXPECT_EQ(column(parse_csv(ran.out), "status"),
            (Words{"pass", "pass", "error", "error", "error"}));
}

TEST(Isolate, RowsAreTheSameAsWithoutIt) {
  const std::string sweep = "qsa-verify run expand -f 'decode|hostile' --csv - -q " +
                            fake("right,wrong,beyond,unsupported,writes-nothing");
  const auto plain = run_tool(sweep), isolated = run_tool(sweep + " --isolate");
  EXPECT_EQ(plain.code, isolated.code) << isolated.all();
  const auto a = parse_csv(plain.out), b = parse_csv(isolated.out);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& name : a.at(0)) {
    if (name == "run_id" || name == "utc") continue;
    EXPECT_EQ(column(a, name), column(b, name)) << name;
  }
  EXPECT_EQ(plain.err, isolated.err);
}

TEST(Isolate, CaseThatCannotBeMadeIs2AsWithoutIt) {
  const auto ran =
      run_tool("qsa-verify run expand -a topk=63,64 --isolate --csv - -q " + fake("right"));
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_EQ(column(parse_csv(ran.out), "status"), (Words{"error", "pass"}));
}

TEST(Isolate, FailFastStopsAtTheCrash) {
  const auto ran = run_tool("qsa-verify run --fail-fast" + kFive + fake("third-faults"));
  EXPECT_EQ(ran.code, 5);
  EXPECT_EQ(column(parse_csv(ran.out), "status"), (Words{"pass", "pass", "crash"}));
}

TEST(Message, KeepsNumbersThatJsonCannot) {
  harness::Message m{harness::Message::Kind::row, {}, {}, true, false, {}};
  m.row.set("case_id", std::string("a,\"b\""));
  m.row.set("seed", int64_t{7});
  m.row.set("gbps", std::numeric_limits<double>::infinity());
  m.row.set("time_us_median", 0.1);
  m.verdict.status = harness::Status::inconclusive;
  m.verdict.err_max_abs = std::nan("");
  m.verdict.findings = {"one", "two"};
  const auto line = harness::from_line(to_line(m));
  ASSERT_TRUE(line);
  const harness::Message& back = *line;
  EXPECT_EQ(harness::csv_line(back.row), harness::csv_line(m.row));
  EXPECT_EQ(back.verdict.status, m.verdict.status);
  EXPECT_TRUE(std::isnan(back.verdict.err_max_abs));
  EXPECT_EQ(back.verdict.findings, m.verdict.findings);
  EXPECT_TRUE(back.survived);
  EXPECT_FALSE(back.judged);
}

TEST(Message, WhatIsNoneIsPassedOver) {
  EXPECT_FALSE(harness::from_line("printf to the wrong descriptor"));
  EXPECT_FALSE(harness::from_line("{\"kind\": 1, \"row\": {\"no such column\": 1}}"));
}

}  // namespace
