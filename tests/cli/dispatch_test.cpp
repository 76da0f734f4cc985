// SPDX-License-Identifier: Apache-2.0
// `list --dispatch`: a plan is made for a GPU that is described, not there.
#include <gtest/gtest.h>

#include "run_tool.h"

using test::run_tool;

namespace {

TEST(Dispatch, NamesKernelsAndLaunchesForADescribedGpu) {
  const auto ran = run_tool("qsa-bench list merge --dispatch -a rows=3 --profile sm_80,H200");
  if (!TOOLKIT_WITH_CUDA) {
    EXPECT_EQ(ran.code, 77) << ran.all();
    return;
  }
  ASSERT_EQ(ran.code, 0) << ran.all();
  for (const std::string text :
       {"sm_80 (A100, 108 multiprocessors)", "sm_90 (H200, 132 multiprocessors)", "portable",
        "qsa::merge_kernel", "blocks of"})
    EXPECT_TRUE(test::has(ran.out, text));
}

TEST(Dispatch, SaysWhyAKernelDoesNotServeACase) {
  if (!TOOLKIT_WITH_CUDA) GTEST_SKIP() << "built without kernels for NVIDIA GPUs";
  const auto ran = run_tool("qsa-bench list attend --dispatch -a dim=20 --profile sm_90");
  EXPECT_TRUE(test::has(ran.out, "no: the head dimension is 20")) << ran.all();
}

TEST(Dispatch, SaysWhereTheBuildHasNoCodeForAGpu) {
  if (!TOOLKIT_WITH_CUDA) GTEST_SKIP() << "built without kernels for NVIDIA GPUs";
  const auto ran = run_tool("qsa-bench list merge --dispatch -a rows=3 --profile sm_120");
  EXPECT_TRUE(test::has(ran.out, "this build has no code for it"));
}

TEST(Dispatch, RefusesAnUnknownGpuAndNamesTheKnown) {
  const auto ran = run_tool("qsa-bench list merge --dispatch -a rows=3 --profile sm_70");
  EXPECT_EQ(ran.code, 2);
  for (const std::string text : {"unknown profile 'sm_70'", "sm_90 (H200)"})
    EXPECT_TRUE(test::has(ran.err, text));
}

}  // namespace
