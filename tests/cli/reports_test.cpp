// SPDX-License-Identifier: Apache-2.0
// Rows as the real programs write them, and the formats alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <locale>
#include <nlohmann/json.hpp>

#include "harness/plugins/errors.h"
#include "harness/report/row.h"
#include "harness/report/sink.h"
#include "run_tool.h"

using test::column;
using test::fake;
using test::parse_csv;
using test::read_file;
using test::run_tool;
using test::scratch;

namespace {

constexpr size_t kColumnCount = harness::kColumns.size();

struct CommaPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
  char do_thousands_sep() const override { return '.'; }
};

TEST(Csv, QuotesAsRfc4180AndKeepsARowOnOneLine) {
  EXPECT_EQ(harness::csv_cell("plain"), "plain");
  EXPECT_EQ(harness::csv_cell("topk<512, \"relu\">"), "\"topk<512, \"\"relu\"\">\"");
  EXPECT_EQ(harness::csv_cell("two\nlines"), "two lines");
  EXPECT_EQ(harness::csv_cell(" blank"), "\" blank\"");
}

TEST(Csv, NumbersHaveADotInAnyLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaPoint));
  EXPECT_EQ(harness::to_text(harness::Cell(0.125)), "0.125");
  EXPECT_EQ(harness::to_text(harness::Cell(int64_t{1234567})), "1234567");
  harness::Row row;
  row.set("time_us_median", 1234.5);
  EXPECT_TRUE(test::has(harness::json_line(row), "1234.5"));
  std::locale::global(before);
}

TEST(Csv, NumbersReadBackAsTheSameNumber) {
  for (const double x : {0.1, 1.0 / 3, 1e-300, 123456789.125})
    EXPECT_EQ(std::stod(harness::to_text(harness::Cell(x))), x);
}

TEST(Csv, UnknownColumnIsAFaultOfTheProgram) {
  harness::Row row;
  EXPECT_THROW(row.set("tiem_us", 1.0), std::logic_error);
}

TEST(Csv, EveryRowHasEveryColumnWhateverItsVerdict) {  // B41
  const std::string csv = scratch("verdicts.csv");
  run_tool("qsa-verify run expand " + fake("right,wrong,error,unsupported") +
           " -f 'decode|no-rows' --csv " + csv);
  const auto rows = parse_csv(read_file(csv));
  ASSERT_EQ(rows.size(), 1u + 2 * 4);
  for (const auto& row : rows) EXPECT_EQ(row.size(), kColumnCount);
  for (const auto status : {"pass", "fail", "error", "unsupported", "skip"})
    EXPECT_EQ(std::ranges::count(column(rows, "status"), status) > 0, true) << status;
  EXPECT_EQ(std::ranges::count(column(rows, "reason"), "the fake kernel, said \"no\""), 1);
  EXPECT_EQ(std::ranges::count(column(rows, "device"), "fake, \"quoted\" device"), 8);
  EXPECT_EQ(std::ranges::count(column(rows, "impl"), "fake/right"), 2);
  EXPECT_EQ(std::ranges::count(column(rows, "seed"), "1"), 8);
}

TEST(Csv, SecondRunAppendsWithoutASecondHeader) {  // B41
  const std::string csv = scratch("append.csv");
  const std::string command = "qsa-verify run expand -a ctx=40 " + fake("right") + " --csv " + csv;
  EXPECT_EQ(run_tool(command).code, 0);
  EXPECT_EQ(run_tool(command).code, 0);
  const auto rows = parse_csv(read_file(csv));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].size(), kColumnCount);
  EXPECT_NE(column(rows, "run_id")[0], column(rows, "run_id")[1]);
}

TEST(Csv, TwoRunsThatBeginOneFileTogetherWriteOneHeader) {  // once two, 1 time in 40
  for (int i = 0; i < 20; ++i) {
    const std::string csv = scratch("together" + std::to_string(i) + ".csv");
    const std::string run =
        "qsa-verify run expand -a requests=1 -q " + fake("right") + " --csv " + csv;
    run_tool(run + " & " TOOLKIT_BIN_DIR "/" + run + "; wait; true");
    const auto ids = test::column(parse_csv(read_file(csv)), "case_id");
    EXPECT_EQ(ids, (std::vector<std::string>(2, "qsa.expand/axes:requests=1")));
  }
}

TEST(Csv, FileWithOtherColumnsOrHalfALineIsRefusedAndLeftAlone) {
  for (const std::string& content :
       {std::string("a,b\n1,2\n"), harness::csv_header() + "\nhalf a li"}) {
    const std::string csv = scratch("foreign.csv");
    std::ofstream(csv) << content;
    EXPECT_EQ(run_tool("qsa-verify run expand -a ctx=40 " + fake("right") + " --csv " + csv).code,
              2);
    EXPECT_EQ(read_file(csv), content);
  }
}

TEST(Csv, PathThatCannotBeWrittenIs2BeforeAnythingRuns) {  // B41
  for (const std::string flag : {"--csv", "--json", "--junit", "--md"}) {
    const auto ran =
        run_tool("qsa-verify run expand " + fake("hang") + " " + flag + " /nowhere/rows");
    EXPECT_EQ(ran.code, 2) << ran.all();
    EXPECT_TRUE(test::has(ran.err, "/nowhere/rows: cannot be written"));
  }
}

// B41: a limit on the file's size (in blocks of 512 bytes) stands for a disk that is full.
TEST(Csv, AFullDiskIs2AndLeavesWholeLines) {
  for (const std::string blocks : {"4", "5", "6"}) {  // the row that does not fit leaves more or less room
    const std::string csv = scratch("full" + blocks + ".csv");
    const std::string run =
        "qsa-verify run expand -a requests=1:9 " + fake("right") + " --csv " + csv;
    const auto ran = run_tool(run, "trap '' XFSZ; ulimit -f " + blocks + ";");
    EXPECT_EQ(ran.code, 2) << ran.all();
    EXPECT_TRUE(test::has(ran.err, ".csv: cannot be written: "));
    const std::string text = read_file(csv);
    EXPECT_EQ(text.back(), '\n');
    EXPECT_GT(parse_csv(text).size(), 1u);
    for (const auto& id : test::column(parse_csv(text), "case_id")) EXPECT_NE(id, "");
    EXPECT_EQ(run_tool(run + " --resume").code, 0);
    EXPECT_EQ(parse_csv(read_file(csv)).size(), 1u + 9);
  }
}

TEST(Csv, ReportOnStandardOutputIsAloneThere) {
  const auto ran = run_tool("qsa-verify run expand -a ctx=40 -v --csv - " + fake("right"));
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(parse_csv(ran.out).size(), 2u) << ran.out;
  EXPECT_TRUE(test::has(ran.err, "PASS 1 of 1"));
  EXPECT_EQ(run_tool("qsa-verify run expand --csv - --json -").code, 2);
  const auto twice = run_tool("qsa-verify run expand --csv " + scratch("one") + " --json " + scratch("./one"));
  EXPECT_EQ(twice.code, 2);
  EXPECT_TRUE(test::has(twice.err, "two reports go to "));
}

TEST(Csv, CommaLocaleOfTheEnvironmentChangesNothing) {
  const std::string command =
      "qsa-bench run expand -a ctx=40 --launch stream --min-time 0.01 --csv - -q " + fake("right");
  const auto rows = parse_csv(run_tool(command, "LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8").out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(column(rows, "time_us_median")[0].find(','), std::string::npos);
}

TEST(Json, LinesAreStrictAndHaveAllColumns) {
  const std::string json = scratch("rows.jsonl");
  run_tool("qsa-verify run expand -a ctx=40 --json " + json + " " +
           fake("right,wrong,writes-nothing,error"));
  std::ifstream lines(json);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto object = nlohmann::json::parse(line);  // throws where it is not strict
    EXPECT_EQ(object.size(), kColumnCount);
  }
  EXPECT_EQ(count, 4);
}

TEST(Json, NotFiniteBecomesNull) {
  harness::Row row;
  row.set("used_share", std::numeric_limits<double>::infinity());
  row.set("err_max_abs", std::nan(""));
  row.set("reason", std::string("no utf-8: \xff"));
  const auto object = nlohmann::json::parse(harness::json_line(row));
  EXPECT_TRUE(object["used_share"].is_null());
  EXPECT_TRUE(object["err_max_abs"].is_null());
}

TEST(Junit, CountsSkippedFailedAndErrorsApart) {
  const std::string junit = scratch("report.xml");
  run_tool("qsa-verify run expand " + fake("right,wrong,error,unsupported") +
           " -f ':ctx=900$' --junit " + junit);
  const std::string text = read_file(junit);
  EXPECT_TRUE(
      test::has(text, "<testsuites tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\">"));
  EXPECT_TRUE(test::has(text, "<skipped message=\"because 62 blocks"));
  EXPECT_TRUE(test::has(text, "said &quot;no&quot;"));
}

TEST(Junit, OddCharactersStayXml) {
  harness::Row row;
  row.set("status", std::string("fail"));
  row.set("reason", std::string("a<b & \x01 \xff"));
  EXPECT_TRUE(test::has(harness::junit_document({row}), "message=\"a&lt;b &amp;   ?\""));
}

TEST(Markdown, FailuresComeFirst) {
  const std::string md = scratch("report.md");
  run_tool("qsa-verify run expand -a ctx=40 --md " + md + " " + fake("right,wrong"));
  const std::string text = read_file(md);
  EXPECT_LT(text.find("**fail**"), text.find("| qsa.expand |"));
  EXPECT_TRUE(test::has(text, "1 fail, 1 pass"));
}

TEST(Markdown, SaysWhatWasSkippedWhatTheInputHoldsAndWhatIsExact) {
  const std::string md = scratch("report.md");
  run_tool("qsa-verify run expand -f 'no-rows|requests-outside' -d simt --md " + md);
  const std::string text = read_file(md);
  EXPECT_TRUE(test::has(text, "## Skipped\n\n- `qsa.expand/no-rows:requests=0`: 0 rows\n"));
  EXPECT_TRUE(test::has(text, "## Findings about the input\n\n- `qsa.expand/requests-outside"));
  EXPECT_TRUE(test::has(text, "| qsa.expand | portable on simt | 1 | 0 | 1 | exact |"));
}

TEST(Markdown, AnOracleThatIsOnlyTimedHasNoError) {
  const std::string md = scratch("bench.md");
  run_tool("qsa-bench run expand -f /decode -d simt --min-time 0.01 --md " + md);
  EXPECT_TRUE(
      test::has(read_file(md), "| qsa.expand | oracle (float64, host) on host | 1 | 0 | 0 |  |"));
}

TEST(Repro, TheCellRunsThisCaseAloneWithTheSameResult) {
  const std::string csv = scratch("repro.csv");
  run_tool("qsa-verify run expand --seed 7 --csv " + csv + " " + fake("wrong"));
  const auto rows = parse_csv(read_file(csv));
  const auto commands = column(rows, "repro"), digests = column(rows, "digest"),
             ids = column(rows, "case_id"), statuses = column(rows, "status");
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto again = run_tool(commands[i] + " --csv - -q");
    EXPECT_EQ(again.code, statuses[i] == "fail" ? 1 : 77) << commands[i] << again.all();
    const auto alone = parse_csv(again.out);
    ASSERT_EQ(alone.size(), 2u) << commands[i];
    EXPECT_EQ(column(alone, "digest")[0], digests[i]) << commands[i];
    EXPECT_EQ(column(alone, "case_id")[0], ids[i]);
    EXPECT_EQ(column(alone, "repro")[0], commands[i]);
  }
}

TEST(Repro, SameSeedSameBitsOtherSeedOtherBits) {
  const auto digest = [](const std::string& seed) {
    return column(parse_csv(run_tool("qsa-verify run expand -f /decode -q --csv - --seed " + seed +
                                     " " + fake("right"))
                                .out),
                  "digest")
        .at(0);
  };
  EXPECT_EQ(digest("3"), digest("3"));
  EXPECT_NE(digest("3"), digest("4"));
}

TEST(Bench, TimedRowsHaveTimesConditionAndVerdict) {  // B38, cold and warm apart
  const auto ran = run_tool(
      "qsa-bench run expand -a ctx=40 --l2 both --launch stream --min-time 0.01 --max-noise 1000 "
      "--csv - -q " +
      fake("right,wrong"));
  EXPECT_EQ(ran.code, 1) << ran.all();
  const auto rows = parse_csv(ran.out);
  ASSERT_EQ(rows.size(), 4u) << ran.all();  // the wrong one is not timed
  EXPECT_EQ(column(rows, "l2"), (std::vector<std::string>{"", "cold", "warm"}));
  EXPECT_EQ(column(rows, "flush_bytes"), (std::vector<std::string>{"", "256000000", ""}));
  EXPECT_EQ(column(rows, "status"), (std::vector<std::string>{"fail", "pass", "pass"}));
  for (const auto name : {"samples", "time_us_median", "empty_us", "gbps"}) {
    EXPECT_TRUE(column(rows, name)[0].empty()) << name;
    EXPECT_FALSE(column(rows, name)[1].empty()) << name;
  }
}

TEST(Bench, GraphsAreAskedOfABackendThatHasThem) {
  const auto ran = run_tool("qsa-bench run expand -a ctx=40 --launch graph " + fake("right"));
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "has no graphs; use --launch stream"));
}

TEST(Bench, SimtTimesAreNeverWritten) {
  const auto ran = run_tool("qsa-bench run expand -f /decode -d simt --min-time 0.01 --csv -");
  EXPECT_EQ(ran.code, 0) << ran.all();
  const auto rows = parse_csv(ran.out);
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    const bool oracle = column(rows, "impl")[i] == "oracle (float64, host)";
    EXPECT_EQ(column(rows, "backend")[i], oracle ? "host" : "simt");
    EXPECT_EQ(column(rows, "time_us_median")[i].empty(), !oracle);
  }
  EXPECT_TRUE(test::has(ran.err, "only the float64 oracle is timed"));
}

}  // namespace
