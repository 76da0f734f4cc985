// SPDX-License-Identifier: Apache-2.0
// A peer's shapes as cases of ours.
#include "harness/compare/peers.h"

#include "harness/compare/shapes.h"

#include <gtest/gtest.h>

#include "compare/files.h"
#include "harness/plugins/errors.h"

using test::has;
using test::timed;
using test::with;

namespace {

const std::string kShapes = TOOLKIT_SOURCE_DIR "/datasets/peers/triton.csv";

std::string peer_file() {
  const std::string path = test::scratch("peer.csv");
  std::ofstream(path) << "op,shape,cold_us,warm_us\n"
                         "empty,-,1.5,1.4\n"
                         "attend,decode|rows=8|ctx=32768|heads=24/2,200.00,180.00\n"
                         "score,decode|rows=64|ctx=8192|heads=24/2|capacity=8192,30.00,20.00\n"
                         "tq_decode,4bit_nc|B=2|ctx=100|heads=32/8|D=128,50.00,40.00\n"
                         "tq_decode,k8v4|B=1|ctx=1024|heads=32/8|D=128,9.00,8.00\n";
  return path;
}

harness::Row attend(const std::string& axes, double us) {
  return timed("axes:requests=8,ctx=32768,ragged=0,page=64,width=2051" + axes, us, 1);
}

harness::Timing timing(const std::string& op, const std::string& id, const std::string& l2) {
  harness::Timing t;
  t.op = op;
  t.case_id = id;
  t.l2 = l2;
  t.launch = "graph";
  return t;
}

TEST(Peers, CoordinatesOfACaseIdKeepLists) {
  const auto at = harness::coordinates_of("tq.decode/axes:lens=5,33,dim=72");
  EXPECT_EQ(at.at("lens"), "5,33");
  EXPECT_EQ(at.at("dim"), "72");
  EXPECT_TRUE(harness::coordinates_of("qsa.topk/normal").empty());
}

TEST(Peers, RowIsFoundByItsCoordinatesDefaultsAndL2State) {
  const harness::Peers peers(kShapes, peer_file());
  const std::string id = "qsa.attend/axes:requests=8,ctx=32768,ragged=0,page=64,width=2051";
  EXPECT_EQ(peers.find(timing("qsa.attend", id, "cold")).value().us, 200);
  EXPECT_EQ(peers.find(timing("qsa.attend", id, "warm")).value().us, 180);
  EXPECT_FALSE(peers.find(timing("qsa.attend", id + ",dtype=f16", "cold")));
  EXPECT_FALSE(peers.find(timing("qsa.attend", "qsa.attend/decode", "cold")));
  harness::Timing stream = timing("qsa.attend", id, "cold");
  stream.launch = "stream";  // the peer's are graph replays
  EXPECT_FALSE(peers.find(stream));
  for (const auto l2 : {"rotate", ""})  // neither of the peer's two states
    EXPECT_FALSE(peers.find(timing("qsa.attend", id, l2))) << l2;
  EXPECT_TRUE(peers.find(
      timing("qsa.score", "qsa.score/axes:requests=64,ctx=8192,ragged=0,width=128", "cold")));
  EXPECT_TRUE(peers.find(timing(
      "tq.decode", "tq.decode/axes:kv_heads=8,dim=128,lens=100,100,heads=32,dtype=bf16", "cold")));
  EXPECT_TRUE(peers.find(
      timing("tq.decode",
             "tq.decode/axes:batch=1,kv_heads=8,dim=128,ctx=1024,quant=k8v4,heads=32,dtype=bf16",
             "cold")));
}

TEST(Peers, ShapesThatAreNoCaseOfOursAreNamed) {
  const std::string path = peer_file();
  std::ofstream(path, std::ios::app) << "attend,sideways|rows=8,20,18\n";
  EXPECT_EQ(harness::Peers(kShapes, path).unknown(),
            (std::vector<std::string>{"attend sideways|rows=8"}));  // an empty launch is no case
}

TEST(Peers, TableThatNamesNoOpOrAxisIsRefusedWithItsLine) {
  const std::string shapes = test::scratch("shapes.csv");
  for (const auto& [line, part] :
       {std::pair("a,b,qsa.atend,rows=4", ":2: op: there is no 'qsa.atend'"),
        std::pair("a,b,qsa.attend,row=4", ":2: axes: qsa.attend has no axis 'row'"),
        std::pair("a,b,qsa.attend,rows", ":2: axes:")}) {
    std::ofstream(shapes) << "peer_op,peer_shape,op,axes\n" << line << "\n";
    try {
      harness::Peers(shapes, peer_file());
      ADD_FAILURE() << line;
    } catch (const harness::BadRequest& e) {
      EXPECT_TRUE(has(e.what(), part));
    }
  }
}

TEST(Peers, TimesThatAreNoTimesAreRefusedWithTheirLine) {
  const std::string path = test::scratch("bad-peer.csv");
  for (const std::string us : {"0", "nan", "-3", "inf"})
    for (const std::string& times : {us + ",1", "1," + us}) {
      std::ofstream(path) << "op,shape,cold_us,warm_us\nempty,-," << times << "\n";
      try {
        harness::Peers(kShapes, path);
        ADD_FAILURE() << times;
      } catch (const harness::BadRequest& e) {
        EXPECT_TRUE(has(e.what(), "bad-peer.csv:2: "));
        EXPECT_TRUE(has(e.what(), "_us: expected more than 0 and finite, got " + us)) << e.what();
      }
    }
  std::ofstream(path) << "op,shape,cold_us,warm_us\nempty,-,1,\n";  // not timed warm
  EXPECT_NO_THROW(harness::Peers(kShapes, path));
}

TEST(Peers, RatioStandsBesideTheVerdict) {
  const auto a = test::file_of("x.csv", {attend("", 110), timed("b", 10, 1)});
  const auto b = test::file_of("y.csv", {attend("", 100), timed("b", 10, 1)});
  const std::string md = test::scratch("r.md");
  const auto ran =
      test::run_tool("qsa-bench compare " + a + " " + b + " --peer " + peer_file() + " --md " + md);
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "FASTER"));
  EXPECT_TRUE(has(ran.out, "0.500 of attend (200.00 us)"));
  EXPECT_TRUE(has(test::read_file(md), "| 200.00 | 0.500 |"));
}

TEST(Peers, OneFileBesideAPeerIsRatiosWithoutVerdicts) {
  const auto b = test::file_of("y.csv", {attend("", 100), timed("b", 10, 1)});
  const auto ran = test::run_tool("qsa-bench compare " + b + " --peer " + peer_file());
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(has(ran.out, "RATIO   0.500"));
  EXPECT_TRUE(has(ran.out, "RATIO 1; 0 only in A, 1 only in B"));
}

}  // namespace
