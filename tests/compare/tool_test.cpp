// SPDX-License-Identifier: Apache-2.0
// `compare` of the real programs: exit codes, documents, bad files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "compare/files.h"

using test::file_of;
using test::has;
using test::run_tool;
using test::scratch;
using test::timed;
using test::with;

namespace {

const std::string kCompare = "qsa-bench compare ";

std::string base() { return file_of("base.csv", {timed("a", 100, 1), timed("b", 50, 1)}); }

TEST(CompareTool, ExitCodeIs4ForASlowdown3ForNoise0ForNeitherAnd77ForNothing) {
  const auto code = [](const harness::Row& a, const harness::Row& b,
                       const std::string& flags = "") {
    return run_tool(kCompare + file_of("x.csv", {a}) + " " + file_of("y.csv", {b}) + " " + flags)
        .code;
  };
  EXPECT_EQ(code(timed("a", 100, 1), timed("a", 110, 1)), 4);
  EXPECT_EQ(code(timed("a", 100, 1), timed("a", 110, 1), "--gate 15"), 0);
  EXPECT_EQ(code(timed("a", 100, 1), timed("a", 90, 1)), 0);
  EXPECT_EQ(code(timed("a", 100, 1), timed("a", 100, 1)), 0);
  EXPECT_EQ(code(timed("a", 100, 9), timed("a", 100, 9)), 3);
  EXPECT_EQ(code(timed("a", 100, 1, 1), timed("a", 100, 1, 1)), 3);
  EXPECT_EQ(code(timed("a", 100, 1), timed("b", 100, 1)), 77);
  EXPECT_EQ(code(timed("a", 100, 1), timed("b", 100, 1), "--require-all"), 3);
}

TEST(CompareTool, RegressionWinsOverNoise) {
  const auto a = file_of("x.csv", {timed("a", 100, 9), timed("b", 100, 1)});
  const auto b = file_of("y.csv", {timed("a", 100, 9), timed("b", 120, 1)});
  const auto ran = run_tool(kCompare + a + " " + b);
  EXPECT_EQ(ran.code, 4);
  EXPECT_TRUE(has(ran.out, "SLOWER 1, UNCLEAR 1, FASTER 0, SAME 0; 0 only in A"));
  EXPECT_TRUE(has(ran.out, "REGRESSION: 1 of 2 cases slower"));
}

// B40: also a file that is too noisy to see anything; nothing was measured twice.
TEST(CompareTool, FileBesideItselfIsAllSame) {
  const auto noisy = with(timed("c", 70, 20), "run_id", std::string("20260101T000000Z-1"));
  const auto path = file_of("self.csv", {timed("a", 100, 1), noisy});
  const auto ran = run_tool(kCompare + path + " " + path);
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "SAME 2;"));
}

TEST(CompareTool, OrderOfRowsAndForeignColumnsMakeNoDifference) {
  const auto a = file_of("x.csv", {timed("a", 100, 1), timed("b", 50, 1)});
  const std::string b = scratch("wide.csv");
  std::ofstream(b) << "zeta,time_us_q3,time_us_median,time_us_q1,median_hi_us,median_lo_us,samples,"
                      "status,launch,l2,device,case_id,impl,op,dtype,\"odd, name\"\r\n"
                   << "1,50.25,50,49.75,50.05,49.95,99,pass,graph,cold,NVIDIA H200,qsa.attend/b,"
                      "portable,qsa.attend,bf16,\"x,\"\"y\"\"\"\r\n"
                   << "2,110.5,110,109.5,110.1,109.9,99,pass,graph,cold,NVIDIA H200,qsa.attend/a,"
                      "portable,qsa.attend,bf16,\r\n";
  const auto ran = run_tool(kCompare + a + " " + b);
  EXPECT_EQ(ran.code, 4) << ran.all();
  EXPECT_TRUE(has(ran.out, "SLOWER 1, UNCLEAR 0, FASTER 0, SAME 1; 0 only in A, 0 only in B"));
}

// B41: names with commas and quotes, a locale with a decimal comma.
TEST(CompareTool, B41OddNamesAndLocalesChangeNothing) {
  const std::string odd = "topk<512, \"relu\">";
  const auto a = file_of("x.csv", {timed(odd, 100.125, 1)});
  const auto b = file_of("y.csv", {timed(odd, 110.125, 1)});
  const auto ran =
      run_tool(kCompare + a + " " + b + " --csv -", "LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8");
  EXPECT_EQ(ran.code, 4) << ran.all();
  const auto rows = test::parse_csv(ran.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].size(), rows[0].size());
  EXPECT_EQ(test::column(rows, "case_id")[0], "qsa.attend/" + odd);
  EXPECT_EQ(test::column(rows, "time_us_a")[0], "100.125");
}

TEST(CompareTool, BadFileIs2AndNamesColumnAndLine) {
  const auto ran_on = [](const std::string& content) {
    const std::string path = scratch("bad.csv");
    std::ofstream(path) << content;
    return run_tool(kCompare + base() + " " + path);
  };
  const std::string head =
      "op,impl,case_id,device,l2,launch,status,samples,time_us_q1,time_us_median,time_us_q3,"
      "median_lo_us,median_hi_us\n";
  const auto check = [&](const std::string& content, const std::string& part) {
    const auto ran = ran_on(content);
    EXPECT_EQ(ran.code, 2) << ran.all();
    EXPECT_TRUE(has(ran.err, part));
  };
  check("op,impl\nx,y\n", "bad.csv:1: no column 'case_id'");
  check(head + "o,i,c,d,cold,graph,pass,9,1,abc,1,1,1\n",
        "bad.csv:2: time_us_median: expected a number, got 'abc'");
  check(head + "o,i,c,d,cold,graph,pass,9,1,1,1,1,1\no,i,c\n", "bad.csv:3: 3 cells");
  check(head + "o,i,,d,cold,graph,pass,9,1,1,1,1,1\n", "bad.csv:2: expected a result row");
  check(head + "o,i,c,d,cold,graph,pass,9,1,0,1,1,1\n", "expected more than 0 and finite, got 0");
  check("", "bad.csv");
  EXPECT_EQ(run_tool(kCompare + base() + " /nowhere/rows.csv").code, 2);
  EXPECT_EQ(run_tool(kCompare + base()).code, 2);
  EXPECT_EQ(run_tool(kCompare + base() + " " + base() + " --csv /nowhere/out.csv").code, 2);
}

TEST(CompareTool, ThresholdsThatAreNoNumbersAre2InShortWords) {
  const auto a = file_of("x.csv", {timed("a", 100, 1)}), b = file_of("y.csv", {timed("a", 130, 1)});
  for (const std::string& flags :
       {"compare " + a + " " + b + " --gate nan", "compare " + a + " " + b + " --gate inf",
        "compare " + a + " " + b + " --gate -1", "compare " + a + " " + b + " --gate ''",
        "compare " + a + " " + b + " --gate 3%", std::string("run expand --max-noise nan"),
        std::string("run expand --max-noise -1"), std::string("run expand --mem-fraction nan"),
        std::string("run expand --mem-fraction 1.5"), std::string("run expand --min-time nan"),
        std::string("run expand --min-time 0")}) {
    const auto ran = run_tool("qsa-bench " + flags);
    EXPECT_EQ(ran.code, 2) << flags << ran.all();
    EXPECT_TRUE(has(ran.err, "expected ")) << ran.err;
    EXPECT_LT(ran.err.size(), 200u) << ran.err;
  }
  EXPECT_EQ(run_tool(kCompare + a + " " + b + " --gate 1e2").code, 0);
}

TEST(CompareTool, RowsOfAnotherSchemaAre2) {
  const auto row = with(timed("a", 100, 1), "schema", int64_t{99});
  const auto ran = run_tool(kCompare + base() + " " + file_of("y.csv", {row}));
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(has(ran.err, "y.csv:2: schema: expected 1, got '99'")) << ran.err;
  EXPECT_EQ(run_tool(kCompare + base() + " " +
                     file_of("y.csv", {with(timed("a", 100, 1), "schema", int64_t{1})}))
                .code,
            0);
}

TEST(CompareTool, ReportsOverwriteNeitherEachOtherNorWhatIsRead) {
  const auto a = file_of("x.csv", {timed("a", 100, 1)}), b = file_of("y.csv", {timed("a", 100, 1)});
  const std::string before = test::read_file(a), folder = a.substr(0, a.rfind('/') + 1);
  const std::string link = scratch("link.csv"), fresh = scratch("fresh");
  std::remove(link.c_str());
  ASSERT_EQ(::symlink(a.c_str(), link.c_str()), 0);
  for (const auto& [flags, part] :
       {std::pair("--md " + a, "is read, and would be written over"),
        std::pair("--csv " + folder + "./y.csv", "is read, and would be written over"),
        std::pair("--junit " + link, "is read, and would be written over"),
        std::pair("--md " + fresh + " --csv " + fresh, "two reports go to "),
        std::pair("--md " + fresh + " --csv " + folder + "./fresh", "two reports go to "),
        std::pair(std::string("--md new --csv ./new"), "two reports go to new"),
        std::pair(std::string("--md - --junit -"), "two reports go to standard output")}) {
    const auto ran = run_tool(kCompare + a + " " + b + " " + flags);
    EXPECT_EQ(ran.code, 2) << flags << ran.all();
    EXPECT_TRUE(has(ran.err, part)) << ran.err;
  }
  EXPECT_EQ(test::read_file(a), before);
}

TEST(CompareTool, SkipsOfBothSidesAreComplete) {
  auto skipped = with(timed("s", 1, 1), "status", std::string("skip"));
  skipped.set("time_us_median", {});
  const auto path = file_of("x.csv", {timed("a", 100, 1), skipped});
  EXPECT_EQ(run_tool(kCompare + path + " " + path + " --require-all").code, 0);
}

TEST(CompareTool, LastLineSaysWhatFailedOnOneSide) {
  auto crashed = with(timed("b", 1, 1), "status", std::string("crash"));
  for (const auto column : {"time_us_median", "l2", "launch"}) crashed.set(column, {});
  const auto b = file_of("y.csv", {timed("a", 100, 1), crashed});
  const auto ran = run_tool(kCompare + base() + " " + b + " -q");
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_EQ(ran.out, "PASS: 1 case compared, 1 not compared (failed on one side)\n");
  const auto strict = run_tool(kCompare + base() + " " + b + " -q --require-all");
  EXPECT_EQ(strict.code, 3) << strict.all();
  EXPECT_EQ(strict.out, "UNCLEAR: 1 case without a counterpart (--require-all)\n");
}

TEST(CompareTool, RoofsGateNothing) {
  const auto roof = [](double us) {
    return with(timed("x", us, 1), "op", std::string("roof.read"));
  };
  const std::string junit = scratch("roofs.xml");
  const auto a = file_of("x.csv", {roof(100), timed("a", 100, 1)});
  const auto b = file_of("y.csv", {roof(150), timed("a", 100, 1)});
  const auto ran = run_tool(kCompare + a + " " + b + " --junit " + junit);
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "RATIO   1.500 ["));
  EXPECT_TRUE(has(ran.out, "SAME 1, 1 roof not judged; 0 only in A")) << ran.out;
  EXPECT_TRUE(has(ran.out, "PASS: 1 case compared\n"));
  EXPECT_TRUE(has(test::read_file(junit), "failures=\"0\" errors=\"0\" skipped=\"1\""));
  // Roofs alone are nothing to pass.
  EXPECT_EQ(
      run_tool(kCompare + file_of("x.csv", {roof(100)}) + " " + file_of("y.csv", {roof(150)})).code,
      77);
}

TEST(CompareTool, UnknownImplementationIs2WithTheNearest) {
  const auto ran = run_tool(kCompare + base() + " " + base() + " --impl portble");
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(has(ran.err, "unknown implementation 'portble', nearest is 'portable'")) << ran.err;
}

TEST(CompareTool, ForeignTextBreaksNoTable) {
  const std::string a = scratch("evil.csv"), md = scratch("evil.md");
  std::ofstream(a)
      << "op,impl,case_id,device,l2,launch,status,reason,samples,time_us_q1,"
         "time_us_median,time_us_q3,median_lo_us,median_hi_us\n"
      << "o,<img>,\"c<script>`x`|\"\"q\"\"\n## h\",d|<b>,cold,graph,pass,,99,99,100,101,"
         "99.9,100.1\n"
      << "o,<img>,z,d|<b>,cold,graph,fail,\"bad\n## h <script>\",,,,,,\n";
  const auto ran = run_tool(kCompare + a + " " + a + " --md " + md);
  EXPECT_EQ(ran.code, 0) << ran.all();
  const std::string text = test::read_file(md);
  EXPECT_TRUE(has(text, "| `` c<script>`x`\\|\"q\" ## h cold graph `` | &lt;img> |"));
  EXPECT_TRUE(has(text, "[&lt;img>]: fail: bad ## h &lt;script>"));
  EXPECT_FALSE(has(text, "\n## h")) << text;
  EXPECT_TRUE(has(text, "d\\|&lt;b>"));
}

TEST(CompareTool, MachinesAreComparedWithTheirRoofsAndWithoutAGate) {
  const auto h = file_of("x.csv", {with(timed("a", 100, 1), "roof_pct", 80.5)});
  const auto other =
      file_of("y.csv", {with(timed("a", 150, 1), "device", std::string("NVIDIA A100"))});
  const auto refused = run_tool(kCompare + h + " " + other);
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(has(refused.err, "--across-devices"));
  const auto ran = run_tool(kCompare + h + " " + other + " --across-devices");
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "of the roof 80.5 -> unknown %"));
  EXPECT_EQ(run_tool(kCompare + h + " " + other + " --across-devices --gate 10").code, 4);
}

TEST(CompareTool, JunitAndMarkdownTellRegressionsNoiseAndGapsApart) {
  const auto a = file_of("x.csv", {timed("a", 100, 1), timed("b", 50, 1), timed("c", 10, 9)});
  const auto b = file_of("y.csv", {timed("a", 110, 1), timed("c", 10, 9), timed("d", 10, 1)});
  const std::string junit = scratch("r.xml"), md = scratch("r.md");
  EXPECT_EQ(run_tool(kCompare + a + " " + b + " -q --junit " + junit + " --md " + md).code, 4);
  const std::string xml = test::read_file(junit), text = test::read_file(md);
  EXPECT_TRUE(has(xml, "<testsuites tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"3\">"));
  EXPECT_TRUE(has(xml, "type=\"fail\" message=\"SLOWER 1.100"));
  EXPECT_FALSE(has(xml, "type=\"inconclusive\""));  // noise fails no merge
  EXPECT_TRUE(has(xml, "<skipped message=\"UNCLEAR"));
  EXPECT_FALSE(has(xml, "> | <")) << xml;
  EXPECT_TRUE(has(text, "## REGRESSION: 1 of 2 cases slower"));
  EXPECT_TRUE(has(text, "| **SLOWER** | 1.100 |"));
  EXPECT_TRUE(has(text, "- only in A: `qsa.attend/b cold graph bf16` [portable]"));
}

TEST(CompareTool, TurboQuantHasItToo) {
  EXPECT_EQ(run_tool("tq-bench compare " + base() + " " + base()).code, 0);
}

}  // namespace
