// SPDX-License-Identifier: Apache-2.0
// Interrupted sweeps leave whole rows, and --resume does the rest.
#include <gtest/gtest.h>
#include <pty.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "cli/progress.h"
#include "run_tool.h"

extern char** environ;

using test::column;
using test::fake;
using test::has;
using test::parse_csv;
using test::read_file;
using test::run_tool;
using test::scratch;

namespace {

using Words = std::vector<std::string>;

constexpr auto kLongest = std::chrono::seconds(120);  // a loaded machine; else the test is at fault

int64_t lines_of(const std::string& file) { return std::ranges::count(read_file(file), '\n'); }

// Starts the program, waits until `csv` has its header and `rows` rows, sends the signal; returns
// the exit code.
int interrupt_after(const std::string& command_line, const std::string& csv, int rows, int signal) {
  const std::string command = "exec " TOOLKIT_BIN_DIR "/" + command_line + " >" + scratch("said");
  const char* words[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t pid = 0;
  if (posix_spawn(&pid, "/bin/sh", nullptr, nullptr, const_cast<char**>(words), environ) != 0)
    return -1;
  const auto due = std::chrono::steady_clock::now() + kLongest;
  while (lines_of(csv) < rows + 1 && std::chrono::steady_clock::now() < due)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // into the case that hangs
  kill(pid, signal);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// B43
TEST(Interrupt, DuringCase4Leaves3CompleteRowsAndResumeDoesTheRest) {
  for (const std::string isolate : {"", " --isolate"}) {
    const std::string csv = scratch("interrupted" + isolate + ".csv");
    const std::string sweep = "qsa-verify run expand -a requests=1:5" + isolate + " --csv '" + csv +
                              "' --junit '" + csv + ".xml' " + fake("fourth-hangs");
    EXPECT_EQ(interrupt_after(sweep, csv, 3, SIGINT), 130);
    EXPECT_TRUE(has(read_file(scratch("said")), "INTERRUPTED by INT"));
    EXPECT_EQ(read_file(csv).back(), '\n');
    EXPECT_EQ(column(parse_csv(read_file(csv)), "status"), Words(3, "pass"));
    EXPECT_TRUE(has(read_file(csv + ".xml"), "tests=\"3\""));

    const auto rest = run_tool(sweep + " --resume --isolate --timeout 10");
    EXPECT_EQ(rest.code, 5) << rest.all();
    EXPECT_TRUE(has(rest.out, "resumed: 3 rows already in " + csv));
    EXPECT_TRUE(has(rest.out, "ERROR 1 of 5"));
    EXPECT_EQ(column(parse_csv(read_file(csv)), "status"),
              (Words{"pass", "pass", "pass", "timeout", "pass"}));

    const auto nothing_left = run_tool(sweep + " --resume");
    EXPECT_EQ(nothing_left.code, 5) << "earlier rows count";
    EXPECT_EQ(lines_of(csv), 6);
  }
}

TEST(Interrupt, TermIs143) {
  const std::string csv = scratch("term.csv");
  EXPECT_EQ(interrupt_after("qsa-bench run expand -a requests=1:5 --isolate --launch stream "
                            "--min-time 0.001 --max-noise 100000 --csv " +
                                csv + " " + fake("fourth-hangs"),
                            csv, 3, SIGTERM),
            143);
  EXPECT_EQ(column(parse_csv(read_file(csv)), "status"), Words(3, "pass"));
}

TEST(Resume, BenchTimesOnlyTheMissingConditionAndImplementation) {
  const std::string csv = scratch("conditions.csv");
  const std::string sweep =
      "qsa-bench run expand -a requests=1:2 --launch stream --min-time 0.001 --max-noise 100000 "
      "--resume --csv " +
      csv + " ";
  EXPECT_EQ(run_tool(sweep + fake("right")).code, 0);
  EXPECT_EQ(lines_of(csv), 3);
  const auto same = run_tool(sweep + fake("right"));
  EXPECT_EQ(same.code, 0) << same.all();
  EXPECT_EQ(lines_of(csv), 3);
  EXPECT_EQ(run_tool(sweep + fake("right,wrong")).code, 1);
  EXPECT_EQ(lines_of(csv), 5);
  EXPECT_EQ(run_tool(sweep + "--seed 2 " + fake("right")).code, 0);
  EXPECT_EQ(lines_of(csv), 7);
}

TEST(Resume, RowsOfAnotherRevisionAreRefused) {
  const std::string csv = scratch("revisions.csv");
  const std::string sweep = "qsa-verify run expand -a requests=1:2 --csv " + csv + " ";
  EXPECT_EQ(run_tool(sweep + fake("right")).code, 0);
  std::string text = read_file(csv);
  const std::string sha = column(parse_csv(text), "git_sha").front();
  text.replace(text.rfind("," + sha + ","), sha.size() + 2, ",0123456789ab,");
  std::ofstream(csv) << text;
  const auto ran = run_tool(sweep + "--resume " + fake("right"));
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(has(ran.err, "holds rows of qsa-verify 0123456789ab, and this is " + sha));
  EXPECT_EQ(read_file(csv), text);
  // Another program's rows in the same file are not what goes on here.
  EXPECT_EQ(run_tool("qsa-bench run expand -a requests=1 --launch stream --min-time 0.001 "
                     "--max-noise 100000 --resume --csv " +
                     csv + " " + fake("right"))
                .code,
            0);
}

TEST(Resume, DocumentsHoldAllRows) {
  const std::string csv = scratch("documents.csv"), xml = csv + ".xml", md = csv + ".md";
  const std::string sweep =
      "qsa-bench run expand --launch stream --min-time 0.001 --max-noise 100000 --resume --csv " +
      csv + " --junit " + xml + " --md " + md + " " + fake("right,wrong");
  EXPECT_EQ(run_tool(sweep + " -a requests=1:2").code, 1);
  const std::string first = read_file(md);
  EXPECT_EQ(run_tool(sweep + " -a requests=1:3").code, 1);
  EXPECT_TRUE(has(read_file(xml), "tests=\"6\" failures=\"3\""));
  const std::string second = read_file(md);
  EXPECT_TRUE(has(second, "6 rows"));
  EXPECT_TRUE(has(second, "Verdicts: 3 fail, 3 pass."));
  // Earlier times stand there as they were measured.
  const size_t begin = first.find("| `qsa.expand/"), end = first.find('\n', begin);
  ASSERT_NE(begin, std::string::npos) << first;
  EXPECT_TRUE(has(second, first.substr(begin, end - begin)));
}

// What a wider limit may let through is tried again, in the place of its row; the same limit would
// only be met again.
TEST(Resume, ATimeoutIsTriedAgainUnderALongerLimitOnly) {
  for (const std::string isolate : {"", " --isolate"}) {
    const std::string csv = scratch("patience" + isolate + ".csv");
    const std::string sweep = "qsa-verify run expand -a requests=3:5 --resume --csv '" + csv + "' " +
                              fake("fourth-hangs") + isolate + " --timeout ";
    EXPECT_EQ(run_tool(sweep + "1").code, 5);
    const auto same = run_tool(sweep + "1");
    EXPECT_EQ(same.code, 5) << same.all();
    EXPECT_TRUE(has(same.out, "resumed: "));
    const auto statuses = [&] { return column(parse_csv(read_file(csv)), "status"); };
    EXPECT_EQ(statuses(), (Words{"pass", "timeout", "pass"}));
    const auto longer = run_tool(sweep + "2");
    EXPECT_EQ(longer.code, 5) << longer.all();
    const auto rows = parse_csv(read_file(csv));
    EXPECT_EQ(column(rows, "status"), (Words{"pass", "pass", "timeout"}));
    EXPECT_TRUE(has(column(rows, "reason")[2], "did not end within 2 s"));
    // A kernel that has been repaired since.
    std::string text = read_file(csv);
    for (size_t at; (at = text.find("fourth-hangs")) != std::string::npos;) text.replace(at, 12, "right");
    std::ofstream(csv) << text;
    const auto repaired = run_tool("qsa-verify run expand -a requests=3:5 --resume --csv '" + csv +
                                   "' " + fake("right") + isolate + " --timeout 60");
    EXPECT_EQ(repaired.code, 0) << repaired.all();
    EXPECT_EQ(statuses(), (Words{"pass", "pass", "pass"}));
  }
}

TEST(Resume, WhatWasTooLargeIsTriedAgainWithALargerShareOnly) {
  const std::string csv = scratch("share.csv");
  const std::string sweep = "qsa-verify run expand -f /decode --resume --csv " + csv + " " +
                            fake("right") + " --mem-fraction ";
  EXPECT_EQ(run_tool(sweep + "1e-9").code, 77);
  EXPECT_EQ(run_tool(sweep + "1e-9").code, 77);
  EXPECT_EQ(column(parse_csv(read_file(csv)), "status"), Words{"skip"});
  EXPECT_EQ(run_tool(sweep + "0.5").code, 0);
  EXPECT_EQ(column(parse_csv(read_file(csv)), "status"), Words{"pass"});
}

TEST(Resume, AnUnknownStatusIsRefusedAndAddsNoRow) {
  const std::string csv = scratch("unknown.csv");
  const std::string sweep = "qsa-verify run expand -a requests=1 --csv " + csv + " " + fake("right");
  EXPECT_EQ(run_tool(sweep).code, 0);
  std::string text = read_file(csv);
  text.replace(text.find(",pass,"), 6, ",great,");
  std::ofstream(csv) << text;
  const auto ran = run_tool(sweep + " --resume");
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(has(ran.err, "unknown.csv:2: unknown status 'great'"));
  EXPECT_EQ(read_file(csv), text);
}

TEST(Resume, ADumpIsTimedAgainInAnotherWay) {  // once its row lacked how it was measured
  const std::string csv = scratch("dump.csv");
  const std::string sweep = "qsa-bench run expand --load " TOOLKIT_SOURCE_DIR
                            "/datasets/golden/qsa.expand/decode.safetensors --launch stream "
                            "--max-noise 100000 --resume --csv " +
                            csv + " " + fake("right") + " --min-time ";
  for (const std::string seconds : {"0.001", "0.001", "0.002"})
    EXPECT_EQ(run_tool(sweep + seconds).code, 0);
  const auto repros = column(parse_csv(read_file(csv)), "repro");
  ASSERT_EQ(repros.size(), 2u);
  EXPECT_TRUE(has(repros[0], " --launch stream --min-time 0.001 --max-noise 100000 -d fake"));
  EXPECT_TRUE(has(repros[1], " --min-time 0.002 "));
}

TEST(Resume, NeedsAFile) {
  const auto ran = run_tool("qsa-verify run expand --resume " + fake("right"));
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(has(ran.err, "needs --csv FILE"));
}

TEST(Memory, CaseThatDoesNotFitIsASkipWithBothNumbers) {
  const auto ran = run_tool("qsa-verify run expand -f /decode -v " + fake("greedy"));
  EXPECT_EQ(ran.code, 77) << ran.all();
  EXPECT_TRUE(has(ran.out, "needs 3 GiB of 2 GiB"));
  const auto small =
      run_tool("qsa-verify run expand -f /decode -v --mem-fraction 1e-9 " + fake("right"));
  EXPECT_EQ(small.code, 77) << small.all();
}

// The caches of 20 million tokens are 66 GiB; the case of 64 goes on.
TEST(Memory, CaseBeyondTheHostIsASkipAndTheSweepGoesOn) {
  const std::string limit = "ulimit -v 3000000;", sweep = " attend -a ctx=20000000,64 -d simt ";
  for (const std::string isolate : {"", " --isolate"}) {
    const auto ran = run_tool("qsa-verify run" + sweep + isolate + " -v --csv -", limit);
    EXPECT_EQ(ran.code, 0) << ran.all();
    const auto rows = parse_csv(ran.out);
    EXPECT_EQ(column(rows, "status").front(), "skip");
    EXPECT_EQ(column(rows, "status").back(), "pass");
    EXPECT_TRUE(has(column(rows, "reason").front(), "needs 66.2 GiB of 2.86 GiB of this host's memory"));
  }
  EXPECT_EQ(run_tool("qsa-bench run attend -a ctx=20000000 -d simt", limit).code, 77);
  const auto dry = run_tool("qsa-bench run" + sweep + "--dry-run", limit);
  EXPECT_EQ(dry.code, 0) << dry.all();
  EXPECT_TRUE(has(dry.out, "ctx=20000000  skip: needs 66.2 GiB"));
  EXPECT_TRUE(has(dry.out, "qsa.attend/axes:ctx=64  bytes="));
}

TEST(Memory, MakingACaseIsUnderTheTimeLimit) {  // a page table of 400 million entries
  const std::string csv = scratch("making.csv");
  const std::string sweep =
      "qsa-bench run attend -a ctx=100000000 -a requests=64 -d simt --timeout 1 --resume --csv " + csv;
  const auto ran = run_tool(sweep);
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(has(ran.out, "TIMEOUT qsa.attend/axes:requests=64,ctx=100000000 [simt]"));
  EXPECT_EQ(run_tool(sweep + " --timeout 0.5").code, 5) << "and is not made again";
  EXPECT_EQ(lines_of(csv), 2);
}

TEST(Memory, DryRunSaysWhatACaseTakes) {
  const auto ran = run_tool("qsa-verify run expand -f /decode --dry-run");
  EXPECT_TRUE(has(ran.out, " memory_bytes="));
}

// It draws no numbers, but what a step moves hangs on them.
TEST(Memory, DryRunCountsTheBytesOfTheRun) {
  for (const std::string selection :
       {"step -f 'prefill|mixed'", "attend -f /decode", "topk", "expand -f hostile"}) {
    const auto rows = parse_csv(run_tool("qsa-verify run " + selection + " -d simt -q --csv -").out);
    const auto dry = run_tool("qsa-verify run " + selection + " --dry-run").out;
    ASSERT_GT(rows.size(), 1u) << selection;
    for (size_t i = 0; i + 1 < rows.size(); ++i)
      if (!column(rows, "bytes")[i].empty()) {
        EXPECT_TRUE(has(dry, column(rows, "case_id")[i] + "  bytes=" + column(rows, "bytes")[i] + " "));
      }
  }
}

// What a terminal gets when the program's standard error is one.
std::string on_terminal(const std::string& command_line) {
  int master = -1;
  const pid_t pid = forkpty(&master, nullptr, nullptr, nullptr);
  if (pid == 0) {
    const std::string command = "exec " TOOLKIT_BIN_DIR "/" + command_line + " >/dev/null";
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(master, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  waitpid(pid, nullptr, 0);
  close(master);
  return text;
}

TEST(Progress, OneLineOnATerminalAndNothingInAPipe) {
  const std::string sweep = "qsa-verify run expand -a requests=1:3 " + fake("right");
  const std::string text = on_terminal(sweep);
  EXPECT_TRUE(has(text, "\r\x1b[Kcase 1 of 3: qsa.expand/"));
  EXPECT_TRUE(has(text, "case 3 of 3, eta 0:0"));
  EXPECT_EQ(text.find('\n'), std::string::npos) << "one line";
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << "and none when it is through";
  EXPECT_EQ(run_tool(sweep).err, "");
  EXPECT_EQ(on_terminal(sweep + " --no-progress"), "");
  EXPECT_TRUE(has(run_tool(sweep + " --progress").err, "case 2 of 3"));
}

TEST(Progress, EtaIsTheMeanOfTheCasesSoFar) {
  EXPECT_EQ(cli::progress_text(0, 9, 0, "op/a"), "case 1 of 9: op/a");
  EXPECT_EQ(cli::progress_text(3, 9, 30, "op/a"), "case 4 of 9, eta 1:00: op/a");
  EXPECT_EQ(cli::progress_text(0, 9, 0, std::string(200, 'x')).size(), 78u);
}

}  // namespace
