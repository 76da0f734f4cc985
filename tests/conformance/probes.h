// SPDX-License-Identifier: Apache-2.0
// The probes of the dialect: each a kernel that tries one group of device functions alone. Words
// are 32 bits.
#pragma once

#include <cstdint>

namespace conformance {

enum Probe : int {
  kIndices,
  kShuffles,
  kVotes,
  kReductions,
  kSharedAtomics,
  kGlobalAtomics,
  kAsyncCopies,
  kDynamicShared,
  kExactMath,
  kRoundedMath,
  kToFloat,
  kFromFloat,
  kMmaBf16,
  kMmaF16,
  kMovedMatrixHalves,
  kMultipliedBf16,
  kMultipliedF16,
  kMultipliedBytes,
  kBitsAndHalves,
  kBulkCopies,
  kOverlappedLaunches,
  kProbes
};

constexpr int kThreads = 128;
constexpr int kGrid[3] = {3, 2, 2};  // of kIndices; the others run one block
constexpr int kValues = 1 << 16;     // inputs of the probes of math and formats, and their threads
constexpr int kDynamicWords = 20 * 1024;  // 80 KiB: more than a launch gets without asking
constexpr int kExactFunctions = 9, kRoundedFunctions = 5, kFormats = 6;
constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 16;  // of 32 lanes
constexpr int kMmaCoordinates =
    2 * (8 + 4 + 4);  // per lane: (row, k) of A, (k, column) of B, (row, column) of C
constexpr int kMovedMatrices = 4, kMovedWords = 2 * kMovedMatrices + 17;  // words of a lane
constexpr int kBulkPieces = 5;  // of 256 bytes
constexpr int kBytesK = 32;     // m16n8k32
constexpr int kBitsWords = 24, kFastExp2At = 21;  // words of a value; the last are exp2_fast,
                                                  // rsqrt_fast and reciprocal_fast of it

constexpr int kOverlapping = 8 * kThreads, kSlowSteps = 4000;  // threads of a launch; what they do

struct Size {
  int in, out;  // words
};
constexpr Size kSizes[kProbes] = {
    {1, kGrid[0] * kGrid[1] * kGrid[2] * kThreads * 11},
    {2 * kThreads, kThreads * 14},
    {kThreads, kThreads * 7},
    {kThreads, kThreads * 10},
    {kThreads, 12},
    {kThreads, 12},
    {4 * kThreads, 4 * kThreads * 3},
    {kDynamicWords, kDynamicWords},
    {3 * kValues, kExactFunctions* kValues},
    {kValues, kRoundedFunctions* kValues},
    {kValues, kFormats* kValues},
    {kValues, kFormats* kValues},
    {kMmaM * kMmaK + kMmaK * kMmaN + kMmaM * kMmaN, kMmaM* kMmaN + 32 * kMmaCoordinates},
    {kMmaM * kMmaK + kMmaK * kMmaN + kMmaM * kMmaN, kMmaM* kMmaN + 32 * kMmaCoordinates},
    {kMovedMatrices * 32, 32 * kMovedWords},
    {kMmaM * kMmaK + kMmaK * kMmaN + kMmaM * kMmaN, 2 * kMmaM* kMmaN},
    {kMmaM * kMmaK + kMmaK * kMmaN + kMmaM * kMmaN, 2 * kMmaM* kMmaN},
    {kMmaM * kBytesK + kBytesK * kMmaN + kMmaM * kMmaN, kMmaM* kMmaN},
    {kValues, kBitsWords* kValues},
    {kBulkPieces * 64, kBulkPieces * 64},
    {kOverlapping, 2 * kOverlapping},
};

}  // namespace conformance
