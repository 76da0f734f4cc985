// SPDX-License-Identifier: Apache-2.0
// What a script may conclude from the exit code of the real programs.
#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <filesystem>

#include <fstream>

#include "harness/run/execute.h"
#include "run_tool.h"

using test::fake;
using test::run_tool;
using test::scratch;

namespace {

const std::string kOne = " -a ctx=40 ";  // one small case of qsa.expand

TEST(ExitCode, RightKernelIs0) {
  const auto ran = run_tool("qsa-verify run expand " + fake("right"));
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "PASS "));
}

TEST(ExitCode, OneSkipBesidePassesIs0AndCounted) {
  const auto ran = run_tool("qsa-verify run expand " + fake("right") + " -f 'decode|no-rows' -v");
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "PASS 1 of 1 (1 skipped)"));
  EXPECT_TRUE(test::has(ran.out, "0 rows"));
}

TEST(ExitCode, OnlySkipsIs77) {
  const auto ran = run_tool("qsa-verify run expand " + fake("right") + " -f no-rows");
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "NOTHING JUDGED"));
}

TEST(ExitCode, WrongKernelIs1AndNamesTheElement) {
  const auto ran = run_tool("qsa-verify run expand " + fake("wrong") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "FAIL qsa.expand/"));
  EXPECT_TRUE(test::has(ran.out, "indices: row 0"));
  EXPECT_TRUE(test::has(ran.out, "repro: qsa-verify run qsa.expand"));
}

TEST(ExitCode, WriteBesideAnOutputIs1AndNamesTheTensor) {
  const auto ran = run_tool("qsa-verify run expand " + fake("beyond") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "wrote outside 'indices': 1 bytes behind its last byte"));
}

TEST(ExitCode, ChangedInputIs1AndNamesTheTensor) {
  const auto ran = run_tool("qsa-verify run expand " + fake("changes-input") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "'block_indices', which it may only read"));
}

TEST(ExitCode, OverrunWorkspaceIs1) {
  const auto ran = run_tool("qsa-verify run expand " + fake("overruns-workspace") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "wrote outside its workspace of 100 bytes"));
}

TEST(ExitCode, UnwrittenOutputIs1AndSaysUnwritten) {
  const auto ran = run_tool("qsa-verify run expand " + fake("writes-nothing") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "unwritten"));
}

TEST(ExitCode, ErrorOfTheBackendIs5WithItsText) {
  const auto ran = run_tool("qsa-verify run expand " + fake("error") + kOne);
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "the fake kernel, said \"no\""));
}

TEST(ExitCode, KernelThatRefusesALegalCallIs5) {
  const auto ran = run_tool("qsa-verify run expand " + fake("invalid") + kOne);
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "expected a blue tensor"));
}

TEST(ExitCode, WrongResultBesideAnErrorIs1) {
  EXPECT_EQ(run_tool("qsa-verify run expand " + fake("error,wrong,right") + kOne).code, 1);
}

TEST(ExitCode, UnsupportedAloneIs77WithTheReason) {
  const auto ran = run_tool("qsa-verify run expand " + fake("unsupported") + kOne + "-v");
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "62 blocks do not fit 48"));
}

TEST(ExitCode, OpWithoutImplementationIs77) {
  const auto ran = run_tool("qsa-verify run qsa.merge --plugin " TOOLKIT_FAKE_PLUGIN " -d fake -v");
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "no implementation of qsa.merge on fake:0"));
  EXPECT_TRUE(test::has(ran.err, "has no kernel of qsa.merge; it has qsa.expand")) << ran.err;
}

TEST(ExitCode, HangIs5NamesTheCaseAndKeepsEarlierRows) {
  const std::string csv = scratch("hang.csv"), junit = scratch("hang.xml");
  const auto ran = run_tool("qsa-verify run expand " + fake("right,hang") + kOne +
                            "--timeout 1 --csv " + csv + " --junit " + junit);
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "TIMEOUT qsa.expand/"));
  EXPECT_EQ(test::column(test::parse_csv(test::read_file(csv)), "status"),
            (std::vector<std::string>{"pass", "timeout"}));
  EXPECT_TRUE(test::has(test::read_file(junit), "errors=\"1\""));
}

TEST(ExitCode, PlantedFaultThatIsNoticedIs1) {
  const auto ran =
      run_tool("qsa-verify run expand --plant last-token-lost " + fake("right") + kOne);
  EXPECT_EQ(ran.code, 1) << ran.all();
}

// A judge that passes damaged results: a fault that changes nothing stands for it.
TEST(ExitCode, PlantedFaultThatSurvivesIs6) {
  const harness::Card& card = *harness::find_card("qsa.expand");
  const harness::Case made = card.generate({}, 1);
  const harness::Truth truth(card, made);
  harness::TensorMap results;
  const auto& oracle = reference::find("qsa.expand");
  const harness::HostCall host(made);
  const auto right = oracle(toolkit::Args(card.contract(), host.call())).outputs.at("indices");
  harness::Tensor t = harness::make_tensor(TK_I32, right.shape);
  for (int64_t i = 0; i < t.count(); ++i) t.set_integer(i, right.integer[i]);
  results.emplace("indices", t);
  EXPECT_EQ(judge_results(truth, results, {}).verdict.status, harness::Status::pass);
  const harness::Fault harmless{"harmless", "changes nothing",
                                [](const harness::Case&, harness::TensorMap&) { return true; }};
  const auto outcome = judge_results(truth, results, harmless);
  EXPECT_TRUE(outcome.survived);
  cli::Tally tally;
  tally.count(outcome.verdict.status, outcome.survived);
  tally.count(harness::Status::fail);
  tally.count(harness::Status::error);
  EXPECT_EQ(tally.exit_code(), 6);
}

TEST(ExitCode, TheWorstWins) {
  using harness::Status;
  cli::Tally tally;
  EXPECT_EQ(tally.exit_code(), 77);
  tally.count(Status::skip);
  tally.count(Status::unsupported);
  EXPECT_EQ(tally.exit_code(), 77);
  tally.count(Status::pass);
  EXPECT_EQ(tally.exit_code(), 0);
  tally.count(Status::impossible);
  EXPECT_EQ(tally.exit_code(), 3);
  tally.count_bad_input();
  EXPECT_EQ(tally.exit_code(), 2);
  tally.count(Status::crash);
  EXPECT_EQ(tally.exit_code(), 5);
  tally.count(Status::fail);
  EXPECT_EQ(tally.exit_code(), 1);
}

TEST(ExitCode, FindingIs0AndWithStrict1) {
  const std::string hostile =
      "qsa-verify run expand " + fake("right") + " -f positions-beyond-length";
  EXPECT_EQ(run_tool(hostile).code, 0);
  const auto strict = run_tool(hostile + " --strict");
  EXPECT_EQ(strict.code, 1);
  EXPECT_TRUE(test::has(strict.out, "finding: "));
}

TEST(ExitCode, NoiseBeyondTheLimitIs3) {
  const auto ran =
      run_tool("qsa-bench run expand " + fake("noisy") + kOne + "--launch stream --min-time 0.02");
  EXPECT_EQ(ran.code, 3) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "INCONCLUSIVE"));
}

TEST(ExitCode, CaseThatCannotBeMadeIs2AndTheSweepGoesOn) {
  const std::string sweep = " expand -a topk=63,64 --csv - -q " + fake("right");
  const auto ran = run_tool("qsa-verify run" + sweep);
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_EQ(test::column(test::parse_csv(ran.out), "status"),
            (std::vector<std::string>{"error", "pass"}));
  EXPECT_EQ(run_tool("qsa-bench run --launch stream --min-time 0.01 --max-noise 1000" + sweep).code,
            2);
}

// Once a row without an op, for which a whole file was refused.
TEST(ExitCode, CaseThatCannotBeMadeHasARowLikeAnyOther) {
  const std::string csv = test::scratch("bad.csv");
  for (const std::string isolate : {"", " --isolate"}) {
    run_tool("qsa-bench run expand -a requests=-1,2 --launch stream --min-time 0.001 --csv " + csv +
             " " + fake("right") + isolate);
    const auto rows = test::parse_csv(test::read_file(csv));
    EXPECT_EQ(test::column(rows, "op").at(0), "qsa.expand");
    EXPECT_TRUE(test::has(test::column(rows, "repro").at(0),
                          "qsa-bench run qsa.expand -a requests=-1 --seed 1 --launch stream"));
    EXPECT_EQ(run_tool("qsa-bench compare " + csv + " " + csv).code % 3, 0);  // equal or noisy
    std::filesystem::remove(csv);
  }
}

TEST(ExitCode, BothWavesOfSimtInAnyOrder) {
  for (const std::string flags :
       {"--wave 32 --order rev", "--wave 64 --order seed:3", "--order fwd"})
    EXPECT_EQ(run_tool("qsa-verify run expand -f /decode -d simt " + flags).code, 0) << flags;
  const auto rows = test::parse_csv(
      run_tool("qsa-verify run expand -f /decode -d simt --wave 64 --order rev --csv - -q").out);
  EXPECT_TRUE(test::has(test::column(rows, "repro").at(0), "-d simt --wave 64 --order rev"));
}

TEST(ExitCode, AbsentBackendIs77WithTheReason) {
  const auto ran = run_tool("qsa-verify run expand -d hip:0");
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(test::has(ran.err, "hip is absent, because "));
}

TEST(ExitCode, DeviceIndexOutOfRangeIs2) {  // B43
  const auto ran = run_tool("qsa-verify run expand --plugin " TOOLKIT_FAKE_PLUGIN " -d fake:1");
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(test::has(ran.err, "there is 1 fake device, so the last index is 0"));
  EXPECT_EQ(run_tool("qsa-verify run expand --plugin " TOOLKIT_FAKE_PLUGIN " -d fake:-1").code, 2);
  EXPECT_EQ(run_tool("qsa-verify run expand --plugin " TOOLKIT_FAKE_PLUGIN " -d fake:x").code, 2);
}

TEST(ExitCode, FilterThatMatchesNothingIs2AndWithAllowEmpty77) {
  EXPECT_EQ(run_tool("qsa-verify run --filter nosuch").code, 2);
  const auto allowed =
      run_tool("qsa-verify run expand --filter nosuch --allow-empty " + fake("right"));
  EXPECT_EQ(allowed.code, 77) << allowed.all();
}

TEST(ExitCode, FailFastStopsAtTheFirstFailure) {
  const auto fast = run_tool("qsa-verify run expand --fail-fast --csv - -q " + fake("wrong"));
  EXPECT_EQ(test::parse_csv(fast.out).size(), 2u) << fast.all();
  const auto going = run_tool("qsa-verify run expand --keep-going --csv - -q " + fake("wrong"));
  EXPECT_GT(test::parse_csv(going.out).size(), 5u);
}

}  // namespace
