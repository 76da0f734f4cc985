// SPDX-License-Identifier: Apache-2.0
// All flags of all verbs, and which verb has which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/tool.h"

namespace cli {

struct Options {
  // cases
  std::vector<std::string> ops, files, axes;
  std::string preset, filter;
  int64_t random = 0;  // cases to draw; 0: the suite, or the axes and preset
  uint64_t seed = 1;
  // listing
  std::string cases;  // a file with one a line
  bool dispatch = false;
  std::vector<std::string> profiles;
  bool allow_empty = false, dry_run = false;
  // dumps
  std::vector<std::string> load;
  std::string op;
  std::vector<std::string> set, tensor, map, as;
  // where, and whose kernel
  std::vector<std::string> devices, plugins, implementations;
  int wave = 0;       // 0: not given (32)
  std::string order;  // as typed
  // judging
  std::string plant;
  int64_t judge_rows = 0;  // of each case; 0: all
  bool strict = false, fail_fast = false;
  double timeout_s = 300;
  bool timeout_given = false;
  // long sweeps
  bool isolate = false, resume = false;
  int progress = -1;  // 1, 0, or -1: not given
  double mem_fraction = 1;
  bool mem_fraction_given = false;
  int isolated_case = -1;          // this process is the child of that case of the plan
  std::vector<std::string> words;  // behind the verb, as typed
  // measuring
  std::string l2 = "cold", launch = "graph";
  bool roofs = false;
  double min_time_s = 0.1;
  double max_noise_pct = -1;  // not given
  // comparing
  double gate_pct = 0;
  bool gate_given = false, across_devices = false, require_all = false;
  std::string peer, targets;
  // reports
  std::string csv, json, junit, markdown, html;
  std::string datasheets;  // instead of datasets/devices.csv
  bool verbose = false, quiet = false;
};

// Parses the words after the verb. Throws harness::BadRequest (with the nearest flag where one is
// unknown). Returns false where help was asked for and printed.
bool parse_options(const Tool& tool, const VerbName& verb, const std::vector<std::string>& words,
                   Options& options);

}  // namespace cli
