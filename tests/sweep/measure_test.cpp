// SPDX-License-Identifier: Apache-2.0
// scripts/measure.sh with programs that only say what they were asked.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "run_tool.h"

using test::has;
using test::read_file;
using test::scratch;

namespace {

// Two GPUs, two presets; a run writes its own command line as a row.
constexpr const char* kTool = R"(#!/bin/sh
case $1 in
  env) cat <<END
  cuda:0    NVIDIA Small, sm_90, driver 580
            wave 32, 20 multiprocessors, memory 1 MiB; its times count, graphs
  cuda:1    NVIDIA H200, sm_90, driver 580
            wave 32, 132 multiprocessors, memory 1 MiB; its times count, graphs
  simt      simt (host, 32 lanes), simt32
            wave 32, 999 multiprocessors, memory 1 MiB; its times say nothing about a kernel
END
  ;;
  --version) echo "tool 0.1.0 (0123abc), plugin ABI 1" ;;
  list) printf 'preset one  a model\npreset two  another\n' ;;
  report) while [ "$1" != --md ]; do all="$all $1"; shift; done; echo "$all" >"$2" ;;
  run)
    all=$*
    while [ "$1" != --csv ]; do shift; done
    echo "$all" >>"$2"
    case $all in *--isolate*) exit 0 ;; esac
    exit "$EXIT" ;;
esac
)";

int measure(const std::string& environment, const std::string& arguments) {
  const int status = std::system((environment + " " TOOLKIT_SOURCE_DIR "/scripts/measure.sh " +
                                  arguments + " >" + scratch("measured") + " 2>&1")
                                     .c_str());
  return WEXITSTATUS(status);
}

// The script of a step of the workflow, as its runner calls it.
int run_step(const std::string& name, const std::string& folder) {
  std::istringstream workflow(read_file(TOOLKIT_SOURCE_DIR "/examples/ci/github-actions.yml"));
  std::string line;
  while (std::getline(workflow, line) && line.find("- name: " + name) == std::string::npos) {
  }
  while (std::getline(workflow, line) && line.find("run: ") == std::string::npos) {
  }
  std::ofstream(folder + "/step.sh") << line.substr(line.find("run: ") + 5) << "\n";
  return WEXITSTATUS(std::system(("cd " + folder + " && bash -e step.sh").c_str()));
}

TEST(Ci, NoisyRowsDoNotEndTheJobBeforeTheyAreCompared) {
  const std::string folder = scratch("ci"), script = folder + "/scripts/measure.sh";
  std::filesystem::create_directories(folder + "/scripts");
  std::ofstream(script) << "#!/bin/sh\nexit $EXIT\n";
  chmod(script.c_str(), 0755);
  for (const auto& [exit, expected] : {std::pair{"3", 0}, {"0", 0}, {"1", 1}, {"5", 1}, {"77", 1}}) {
    setenv("EXIT", exit, 1);
    EXPECT_EQ(run_step("Bench", folder), expected) << exit;
  }
  unsetenv("EXIT");
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Measure, WithoutAGpuIs77AndSaysSo) {
  EXPECT_EQ(measure("CUDA_VISIBLE_DEVICES= HIP_VISIBLE_DEVICES=", "--bin " TOOLKIT_BIN_DIR), 77);
  EXPECT_TRUE(has(read_file(scratch("measured")), "NOTHING MEASURED: no GPU here"));
}

TEST(Measure, RunsEveryPresetOnTheLargestGpuAndKeepsAnInterruptedRunApart) {
  const std::string bin = scratch("bin"), out = scratch("baseline");
  mkdir(bin.c_str(), 0755);
  for (const std::string tool : {"/qsa-bench", "/tq-bench"}) {
    std::ofstream(bin + tool) << kTool;
    chmod((bin + tool).c_str(), 0755);
  }
  const std::string flags = "--bin " + bin + " --out " + out + " --l2 both";
  EXPECT_EQ(measure("EXIT=130", flags), 130);
  EXPECT_EQ(read_file(out + "/qsa-bench.csv"), "");
  EXPECT_EQ(measure("EXIT=3", flags), 3);
  const std::string rows = read_file(out + "/qsa-bench.csv");
  EXPECT_TRUE(has(rows, "run -p one -d cuda:1 --roofs --resume --csv "));
  EXPECT_TRUE(has(rows, "run -p two -d cuda:1 "));
  EXPECT_TRUE(has(rows, " --l2 both\n"));
  EXPECT_TRUE(has(read_file(out + "/tq-bench.csv"), "run -p two "));
  EXPECT_EQ(read_file(out + "/qsa-bench.0123abc.part"), "");
  EXPECT_TRUE(has(read_file(out + "/report.md"), "tq-bench.csv"));
  // A preset that breaks its process is measured again, a process a case, and only that counts.
  EXPECT_EQ(measure("EXIT=139", flags), 0);
  EXPECT_EQ(count(read_file(out + "/qsa-bench.csv"), "run "), 2u);
  EXPECT_EQ(count(read_file(out + "/qsa-bench.csv"), "--isolate "), 2u);
}

}  // namespace
