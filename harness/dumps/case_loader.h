// SPDX-License-Identifier: Apache-2.0
// A case from dumped files: tensors by contract names, scalars from metadata, both completed by what the user says.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/tensors/case.h"

namespace harness {

// What a dump does not say itself, as the flags give it.
struct LoadOptions {
  std::string op;                              // --op NAME; wins over the metadata
  ScalarMap set;                               // --set k=v; wins over the metadata
  std::map<std::string, std::string> map;      // --map ours=theirs
  std::map<std::string, std::string> tensors;  // --tensor name=file[:key]
  std::map<std::string, std::string> as;       // --as name=bf16: the same bits, read as another dtype of that width
};

// One call from one or several files. Names: a contract's tensor is an input; "expected.NAME" and "actual.NAME" are
// results; in a qsa.step, "stage.NAME", "stage.expected.NAME" and "stage.actual.NAME" (results "stage.NAME"). An .npy
// stands for the tensor of its file name.
// Throws BadFile for what is wrong with a file, toolkit::Violation for a case that breaks the op's contract,
// std::invalid_argument for options that name nothing.
Case load_case(const std::vector<std::string>& files, const LoadOptions& options = {});

// "ours=theirs" of a flag into its two halves; std::invalid_argument names the flag.
std::pair<std::string, std::string> split_assignment(const std::string& flag, const std::string& text);

}  // namespace harness
