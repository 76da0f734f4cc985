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

TEST(MeasureBeside, TimesTheCaseOfEachShapeOnceAndNamesTheRest) {
  const std::string peer = scratch("peer.csv"), asked = scratch("asked"), said = scratch("said");
  std::ofstream(peer) << "op,shape,cold_us,warm_us\nempty,-,4,3\n"
                         "attend,decode|rows=2|ctx=512|heads=24/2,10,9\n"
                         "attend,decode|rows=2|ctx=512|heads=24/2,11,9\n"
                         "tq_decode,k8v4|B=3|ctx=40|heads=8/2|D=64,10,9\n"
                         "attend,decode|rows=x|ctx=512|heads=24/2,1,1\n"
                         "other,decode|rows=2,1,2\n";
  const int status = std::system(("ASKED=" + asked + " " TOOLKIT_SOURCE_DIR
                                  "/scripts/measure_beside.sh " +
                                  peer + " " + scratch("out") + " --bin " + stub_tools() +
                                  " --min-time 0.01 >" + said + " 2>&1")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << read_file(said);
  EXPECT_TRUE(has(read_file(said), "no case of ours: other decode|rows=2"));
  EXPECT_TRUE(has(read_file(said), "no case of ours: attend decode|rows=x"));
  const std::string lines = read_file(asked);
  const std::string attend = "qsa-bench run qsa.attend -a batch=decode -a requests=2 -a ctx=512 ";
  EXPECT_TRUE(has(lines, attend));
  EXPECT_EQ(lines.find(attend), lines.rfind(attend));
  EXPECT_TRUE(has(lines, "tq-bench run tq.decode -a lens=[40,40,40] -a heads=8 -a kv_heads=2"));
  EXPECT_TRUE(has(lines, "--min-time 0.01"));
  EXPECT_TRUE(has(lines, "qsa-bench report "));
}

TEST(MeasureBeside, WithoutAPeersFileIs2AndSaysWhatIsMissing) {
  const std::string said = scratch("said2");
  const int status = std::system(
      (TOOLKIT_SOURCE_DIR "/scripts/measure_beside.sh /nowhere.csv /tmp >" + said + " 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_TRUE(has(read_file(said), "/nowhere.csv: expected a readable file"));
}

}  // namespace
