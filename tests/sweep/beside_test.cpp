// SPDX-License-Identifier: Apache-2.0
// scripts/measure_beside.sh with programs that only say what they were asked.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "run_tool.h"

using test::has;
using test::read_file;
using test::scratch;

namespace {

std::string stub_tools() {
  const std::string folder = scratch("tools");
  ::mkdir(folder.c_str(), 0755);
  for (const std::string tool : {"qsa-bench", "tq-bench"}) {
    const std::string file = folder + "/" + tool;
    std::ofstream(file) << "#!/bin/sh\necho \"$(basename $0) $*\" >>\"$ASKED\"\n";
    ::chmod(file.c_str(), 0755);
  }
  return folder;
}

TEST(MeasureBeside, TimesTheCaseOfEachShapeAndNamesTheRest) {
  const std::string peer = scratch("peer.csv"), asked = scratch("asked"), said = scratch("said"), targets = scratch("targets.csv");
  std::ofstream(targets) << "name,op,axes,best_peer_us,must_us,goal_us\n"
                            "\"three rows, short\",qsa.topk,rows=3 columns=8192 k=512,,8,7\n";
  std::ofstream(peer) << "op,shape,cold_us,warm_us\nempty,-,4,3\n"
                         "attend,decode|rows=2|ctx=512|heads=24/2,10,9\n"
                         "attend,decode|rows=2|ctx=512|heads=24/2,11,9\n"
                         "tq_decode,k8v4|B=3|ctx=40|heads=8/2|D=64,10,9\n"
                         "tq_decode,k8v4|B=1|ctx=40|heads=8/2|D=64,10,9\n"
                         "attend,decode|rows=x|ctx=512|heads=24/2,1,1\n"
                         "other,decode|rows=2,1,2\n";
  const int status = std::system(("ASKED=" + asked + " " TOOLKIT_SOURCE_DIR
                                  "/scripts/measure_beside.sh " +
                                  peer + " " + scratch("out") + " --targets " + targets + " --bin " + stub_tools() +
                                  " --min-time 0.01 >" + said + " 2>&1")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << read_file(said);
  EXPECT_TRUE(has(read_file(said), "no case of ours: other decode|rows=2"));
  EXPECT_TRUE(has(read_file(said), "no case of ours: attend decode|rows=x"));
  const std::string lines = read_file(asked), cases = read_file(scratch("out") + "/cases.txt");
  EXPECT_TRUE(has(cases, "qsa.attend batch=decode requests=2 ctx=512 ")) << cases;
  EXPECT_TRUE(has(cases, "tq.decode lens=40*3 heads=8 kv_heads=2")) << cases;
  EXPECT_TRUE(has(cases, "tq.decode batch=1 ctx=40 heads=8 kv_heads=2")) << cases;  // as a target names it: timed once
  EXPECT_TRUE(has(cases, "qsa.topk rows=3 columns=8192 k=512")) << cases;  // a target's, behind a name in quotes
  EXPECT_TRUE(has(lines, "qsa-bench run --cases " + scratch("out") + "/cases.txt")) << lines;
  EXPECT_TRUE(has(lines, "tq-bench run --cases ")) << lines;
  EXPECT_TRUE(has(lines, "--judge-rows 64 --impl best --min-time 0.01")) << lines;
  EXPECT_TRUE(has(lines, "qsa-bench report ")) << lines;
  EXPECT_TRUE(has(lines, "--targets " + targets)) << lines;
}

TEST(MeasureBeside, WithoutAPeersFileIs2AndSaysWhatIsMissing) {
  const std::string said = scratch("said2");
  const int status = std::system(
      (TOOLKIT_SOURCE_DIR "/scripts/measure_beside.sh /nowhere.csv /tmp >" + said + " 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_TRUE(has(read_file(said), "/nowhere.csv: expected a readable file"));
}

}  // namespace
