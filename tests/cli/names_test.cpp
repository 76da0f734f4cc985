// SPDX-License-Identifier: Apache-2.0
// Words that the programs do not know: exit 2 and the nearest word. And what they say when asked
// for help.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "run_tool.h"

using test::run_tool;

namespace {

void expect_refused(const std::string& command, const std::vector<std::string>& said) {
  const auto ran = run_tool(command);
  EXPECT_EQ(ran.code, 2) << command << "\n" << ran.all();
  for (const auto& text : said) EXPECT_TRUE(test::has(ran.err, text)) << command;
}

TEST(Names, NoVerbShowsOneScreenWithThreeExamplesAndIsNot0) {
  for (const std::string tool : {"qsa-verify", "qsa-bench", "tq-bench"}) {
    const auto ran = run_tool(tool);
    EXPECT_EQ(ran.code, 2);
    size_t examples = 0;
    for (size_t at = 0; (at = ran.err.find("\n  " + tool + " ", at)) != std::string::npos; ++at)
      ++examples;
    EXPECT_EQ(examples, 3u) << ran.err;
    EXPECT_LT(std::count(ran.err.begin(), ran.err.end(), '\n'), 24);
  }
}

TEST(Names, HelpIs0AndHasExamplesForEveryVerb) {
  EXPECT_EQ(run_tool("qsa-verify --help").code, 0);
  for (const std::string verb :
       {"qsa-verify run", "qsa-verify replay", "qsa-verify list", "qsa-bench run", "qsa-bench env",
        "tq-bench run", "tq-bench verify", "tq-bench replay"}) {
    const auto ran = run_tool(verb + " --help");
    EXPECT_EQ(ran.code, 0);
    EXPECT_TRUE(test::has(ran.out, "Examples:\n  " + verb));
  }
}

TEST(Names, UnknownVerb) {
  expect_refused("qsa-verify rum", {"unknown verb 'rum', nearest is 'run'"});
}
TEST(Names, UnknownFlag) {
  expect_refused("qsa-verify run --devise simt",
                 {"unknown flag '--devise', nearest is '--device'"});
  expect_refused("qsa-bench run --maxnoise=3", {"nearest is '--max-noise'"});
}
TEST(Names, FlagOfAnotherVerb) {
  expect_refused("qsa-verify run --l2 warm", {"unknown flag '--l2'"});
  expect_refused("qsa-verify replay x.safetensors --resume", {"unknown flag '--resume'"});
}
TEST(Names, UnknownOp) {
  expect_refused("qsa-bench run nosuchop", {"unknown op 'nosuchop', nearest is '"});
  expect_refused("qsa-bench run scare", {"nearest is 'qsa.score'"});
}
TEST(Names, OpOfTheOtherFamily) { expect_refused("qsa-bench run tq.decode", {"tq-bench"}); }
TEST(Names, AmbiguousOpNamesBoth) {
  expect_refused("qsa-verify run merge", {"qsa.merge", "tq.merge"});
}
TEST(Names, BareMergeIsTheFamilysOwnInABench) {
  EXPECT_TRUE(test::has(run_tool("tq-bench verify merge --dry-run").out, "tq.merge/"));
  EXPECT_TRUE(test::has(run_tool("qsa-bench run merge --dry-run").out, "qsa.merge/"));
}
TEST(Names, UnknownAxis) {
  expect_refused("qsa-verify run expand -a rtio=4", {"unknown axis 'rtio', nearest is 'ratio'"});
}
TEST(Names, AxisValueThatMakesNoCase) {
  expect_refused("qsa-verify run expand -a ratio=0 -d simt", {"ratio"});
  expect_refused("qsa-verify run expand -a ratio=four -d simt", {"ratio", "four"});
}
TEST(Names, AxisThatOneNamedOpLacks) {
  expect_refused("qsa-verify run expand qsa.merge -a topk=8", {"qsa.merge has no axis 'topk'"});
}
TEST(Names, UnknownPreset) { expect_refused("qsa-verify run -p nosuchmodel", {"preset"}); }
TEST(Names, UnknownDevice) {
  expect_refused("qsa-verify run expand -d smit", {"unknown device 'smit', nearest is 'simt'"});
}
TEST(Names, UnknownImplementation) {
  expect_refused("qsa-verify run expand " + test::fake("rigth"),
                 {"unknown implementation 'rigth'", "right"});
}
TEST(Names, TheBestImplementationServesAlone) {
  // 72 dimensions are the portable kernel's, 128 the tuned one's: a row each.
  const auto ran = run_tool("qsa-verify run tq.decode -a dim=72,128 -d simt --impl best -v");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(test::has(ran.out, "dim=72 [portable on simt]")) << ran.out;
  EXPECT_TRUE(test::has(ran.out, "dim=128 [sm_80 on simt]")) << ran.out;
  EXPECT_TRUE(test::has(ran.out, "PASS 2 of 2\n")) << ran.out;
  expect_refused("qsa-verify run expand -d simt --impl best,portable", {"expected no other implementation"});
}
TEST(Names, CasesOfAFile) {
  const std::string file = test::scratch("cases.txt");
  const auto refused = [&](const std::string& line, std::initializer_list<std::string> says) {
    std::ofstream(file) << "# shapes\n" << line << "\n";
    expect_refused("qsa-bench run --cases " + file, says);
  };
  refused("atend rows=4", {"cases.txt:2", "attend"});
  refused("qsa.expand rato=4", {"cases.txt:2: qsa.expand has no axis 'rato', nearest is 'ratio'"});
  refused("qsa.expand ratio", {"cases.txt:2", "expected axis=value"});
  refused("qsa.expand ratio=0", {"ratio"});
  expect_refused("qsa-bench run --cases /nowhere", {"/nowhere: cannot be read"});
  std::ofstream(file) << "\ntq.decode lens=50*3\nqsa.expand ratio=2 rows=3\nqsa.expand rows=3 ratio=2\n";
  expect_refused("qsa-bench run expand --cases " + file, {"expected no op"});
  const auto ran = run_tool("qsa-bench run --dry-run --cases " + file);
  EXPECT_TRUE(test::has(ran.out, "left out: 1 cases of")) << ran.out;
  EXPECT_TRUE(test::has(ran.out, "1 cases, none was run")) << ran.out;  // the third line is the second again
  EXPECT_TRUE(test::has(run_tool("tq-bench run --dry-run --cases " + file).out, "lens=50,50,50"));
}
TEST(Names, UnknownFault) {
  expect_refused("qsa-verify run expand --plant last-tokn-lost", {"nearest is 'last-token-lost'"});
}
TEST(Names, BadValues) {
  expect_refused("qsa-verify run expand --wave 16", {"--wave"});
  expect_refused("qsa-verify run expand --order backwards", {"expected fwd, rev or seed:N"});
  expect_refused("qsa-verify run expand -f '('", {"no regular expression"});
  expect_refused("qsa-verify run expand -a rows", {"name=value"});
  expect_refused("qsa-verify run expand --seed many", {"--seed"});
  expect_refused("qsa-bench run expand --l2 tepid", {"--l2"});
  expect_refused("qsa-verify run expand -q -v", {"--verbose", "--quiet"});
}
TEST(Names, RowsToJudge) {
  expect_refused("qsa-verify run topk --judge-rows 0", {"--judge-rows"});
  expect_refused("qsa-verify run topk --judge-rows 2 --plant duplicate",
                 {"--plant damages any row: --judge-rows might not look at it"});
  const auto ran = run_tool("qsa-verify run topk store -d simt --impl portable -a rows=9 --judge-rows 2 --csv -");
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_EQ(ran.out.find("judged 2 of 9 rows"), ran.out.rfind("judged 2 of 9 rows")) << ran.out;
  EXPECT_TRUE(test::has(ran.out, ",pass,judged 2 of 9 rows,")) << ran.out;
  EXPECT_TRUE(test::has(ran.out, "run qsa.topk -a rows=9 --seed 1 -d simt --impl portable --judge-rows 2")) << ran.out;
}
TEST(Names, StoredListsOfCasesAreCases) {
  const auto listed = [](const std::string& file) {
    return run_tool("qsa-verify run --dry-run --cases " TOOLKIT_SOURCE_DIR "/datasets/cases/" + file).out;
  };
  EXPECT_TRUE(test::has(listed("beyond-2-31.txt"), "6 cases, none was run"));
  EXPECT_TRUE(test::has(listed("outputs-beyond-2-31.txt"), "1 cases, none was run"));
}
TEST(Names, SimtOptionsNeedSimt) {
  expect_refused("qsa-verify run expand --wave 64 " + test::fake("right"),
                 {"--wave is an option of simt"});
}
TEST(Names, DumpFlagsOfTheBenchNeedADump) {
  expect_refused("qsa-bench run --op score", {"--load"});
}

TEST(Names, FilesThatAreNoPlugins) {
  expect_refused("qsa-verify run expand --plugin /nowhere/k.so", {"/nowhere/k.so: no such file"});
  expect_refused("qsa-verify run expand --plugin " TOOLKIT_SOURCE_DIR "/README.md",
                 {"README.md: cannot be loaded"});
  expect_refused("qsa-verify run expand --plugin " TOOLKIT_OLD_PLUGIN,
                 {"ABI version 2, expected 1"});
}

TEST(Names, ListShowsAxesSuitesAndFaults) {
  const auto ran = run_tool("qsa-verify list expand");
  EXPECT_EQ(ran.code, 0);
  for (const std::string text : {"axis   ratio=4", "suite  decode", "fault  last-token-lost"})
    EXPECT_TRUE(test::has(ran.out, text));
}

TEST(Names, ListAloneIsAnOverviewOfOpsAndPresets) {
  const auto ran = run_tool("qsa-verify list");
  EXPECT_EQ(ran.code, 0);
  for (const std::string text : {"tq.decode", "preset ", "qsa-verify list NAME"})
    EXPECT_TRUE(test::has(ran.out, text));
  EXPECT_EQ(ran.out.find("  axis "), std::string::npos);
}

TEST(Names, EnvSaysWhatIsHereAndWhyTheRestIsNot) {
  const auto ran = run_tool("qsa-bench env");
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(test::has(ran.out, "hip: absent, because"));
  EXPECT_TRUE(test::has(ran.out, "plugin ABI 1"));
  EXPECT_TRUE(test::has(ran.out, "wave 32, "));  // B37
  EXPECT_TRUE(test::has(ran.out, "KiB per block"));
}

TEST(Names, DryRunPrintsCasesAndRunsNothing) {
  const auto ran = run_tool("qsa-verify run expand --dry-run -a ratio=2,4 -a ctx=64:256:*2");
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(test::has(ran.out, "6 cases, none was run"));
  EXPECT_TRUE(test::has(ran.out, "bytes="));
}

// Every op gets its share, a seed draws the same cases again, -a pins an axis, and each id is a command that makes the case.
TEST(Names, RandomCasesAreTheSeedsAndKeepWhatIsPinned) {
  const std::string command = "qsa-verify run --random 15 --dry-run --seed ";
  const auto ran = run_tool(command + "3");
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(test::has(ran.out, "15 cases, none was run"));
  for (const char* op : {"qsa.attend/random", "qsa.step/random", "tq.decode/random", "tq.rotate/random"})
    EXPECT_TRUE(test::has(ran.out, op)) << op;
  EXPECT_EQ(run_tool(command + "3").out, ran.out);
  EXPECT_NE(run_tool(command + "4").out, ran.out);
  const auto pinned = run_tool("qsa-verify run expand --random 9 --dry-run -a ratio=2,3");
  EXPECT_TRUE(test::has(pinned.out, "ratio=2"));
  EXPECT_FALSE(test::has(pinned.out, "ratio=8"));
  EXPECT_EQ(run_tool("qsa-verify run expand --random 0").code, 2);
  EXPECT_EQ(run_tool("tq-bench run --random 4 -p qwen3-4b-k8v4 --dry-run").code, 2);
}

}  // namespace
