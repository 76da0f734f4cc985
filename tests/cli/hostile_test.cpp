// SPDX-License-Identifier: Apache-2.0
// Dumps, flags and streams that are meant to break the real programs: never a crash, a hang or a
// wrong 0.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "harness/dumps/dump.h"
#include "harness/dumps/writer.h"
#include "harness/generate/fill.h"
#include "run_tool.h"

using test::run_tool;

namespace {

const std::string kData = TOOLKIT_SOURCE_DIR "/tests/data/";
const std::string kRight = kData + "candidates/qsa.expand.decode.right.safetensors";
const std::string kStep = kData + "steps/step.right.safetensors";

TEST(Hostile, AnOutputBeyondTheMachinesMemoryIs2AndNamed) {
  const std::string file = test::scratch("k.safetensors");
  harness::write_safetensors(file,
                             {{"logits", harness::from_reals(TK_F32, {1, 2}, {1, 2})},
                              {"visible_blocks", harness::from_integers(TK_I32, {2})}},
                             {{"op", "qsa.topk"}, {"k", "1099511627776"}});
  const auto ran = run_tool("qsa-verify replay -d simt " + file + " " + kRight);
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(test::has(ran.err, "qsa.topk: block_indices: expected at most "));
  EXPECT_TRUE(test::has(ran.err, "i32 [1,1099511627776], which needs 2.05e+04 GiB"));
  EXPECT_TRUE(test::has(ran.out, "BAD INPUT 1 of 2"));
}

TEST(Hostile, ResultOfAStageThatIsNotAsLargeAsItsScalarSaysIs2) {
  const auto ran = run_tool("qsa-verify replay --set k=1099511627776 " + kStep);
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(test::has(ran.err, "topk.actual.block_indices: expected i32 ["));
}

TEST(Hostile, ResultOfAStageThatIsMisspeltIs2) {
  const harness::Dump dump = harness::Dump::open(kStep);
  harness::TensorMap tensors;
  for (const auto& e : dump.entries()) tensors.emplace(e.name, dump.tensor(e.name));
  const std::string file = test::scratch("stages.safetensors");
  tensors.emplace("score.expected.logits", dump.tensor("score.actual.logits"));
  harness::write_safetensors(file, tensors, dump.metadata());
  const auto noted = run_tool("qsa-verify replay " + file);
  EXPECT_EQ(noted.code, 0) << noted.all();
  EXPECT_TRUE(test::has(noted.out, "the stages' expected.* are not compared"));
  tensors.emplace("scroe.actual.logits", dump.tensor("score.actual.logits"));
  harness::write_safetensors(file, tensors, dump.metadata());
  const auto ran = run_tool("qsa-verify replay " + file);
  EXPECT_EQ(ran.code, 2) << ran.all();
  EXPECT_TRUE(
      test::has(ran.err, "expected a stage (compress, store, score, topk, expand, attend)"));
}

TEST(Hostile, ScalarOfAStageIsNotReadInAWholeStep) {
  const harness::Dump dump = harness::Dump::open(kStep);
  harness::TensorMap inputs;
  for (const auto& e : dump.entries())
    if (e.name.find(".actual.") == std::string::npos) inputs.emplace(e.name, dump.tensor(e.name));
  harness::ScalarMap scalars = dump.metadata();
  scalars["k"] = "abc";
  const std::string file = test::scratch("whole.safetensors");
  harness::write_safetensors(file, inputs, scalars);
  const auto ran = run_tool("qsa-verify replay -d simt " + file);
  EXPECT_EQ(ran.code, 0) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "scalar 'k' is not used by a whole qsa.step"));
}

TEST(Hostile, FileThatNeedsTooMuchMemoryIs5AndTheOthersGoOn) {
  const std::string file = test::scratch("swapped.npy");  // big-endian: the data has to be copied
  std::string header = "{'descr': '>i4', 'fortran_order': False, 'shape': (300000000,), }";
  header.resize(118, ' ');
  std::ofstream(file) << std::string("\x93NUMPY\x01\0\x76\0", 10) << header;
  std::filesystem::resize_file(file, 128 + 4 * 300000000ull);  // a hole
  const auto ran =
      run_tool("qsa-verify replay --op expand -d simt --tensor sequence_lengths=" + file + " " +
                   kRight + " " + kData + "dumps/gap.safetensors",
               "ulimit -v 2000000;");
  EXPECT_EQ(ran.code, 5) << ran.all();
  EXPECT_TRUE(test::has(ran.out, "out of memory"));
  EXPECT_TRUE(test::has(ran.out, "ERROR 1 of 2"));
}

TEST(Hostile, ClosedStreamsAreNoCrashAndNoReportGoesIntoTheirPlace) {
  const std::string csv = test::scratch("closed.csv"), then = "; exit $?; true";
  EXPECT_EQ(run_tool("qsa-verify replay " + kData + "dumps/gap.safetensors >&- 2>&-" + then).code,
            2);
  EXPECT_EQ(run_tool("qsa-verify replay " + kRight + " -v --csv " + csv + " >&- 2>&-" + then).code,
            0);
  EXPECT_EQ(test::parse_csv(test::read_file(csv)).size(), 2u) << test::read_file(csv);
}

TEST(Hostile, NumbersThatAreNoSecondsAndNoSeedAre2) {
  for (const std::string flag :
       {"--timeout nan", "--timeout -1", "--timeout 1e300", "--timeout ''", "--seed -1",
        "--seed 18446744073709551616", "--seed ''", "--seed 1x"}) {
    const auto ran = run_tool("qsa-verify run expand -d simt --dry-run " + flag);
    EXPECT_EQ(ran.code, 2) << flag << ran.all();
    EXPECT_TRUE(test::has(ran.err, "expected "));
  }
  EXPECT_EQ(run_tool("qsa-verify run expand -d simt --dry-run --seed 18446744073709551615").code,
            0);
}

}  // namespace
