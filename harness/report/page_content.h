// SPDX-License-Identifier: Apache-2.0
// What a report says, before it is HTML or Markdown.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/report/page.h"

namespace harness::page {

// A row: a case, or a roof.
struct Entry {
  const Row* row;
  int number;                      // of a case: from 1, in the order of the files
  int op;                          // index into Content::ops; of a roof -1
  std::optional<RoofShare> share;  // of its roof
  bool too_fast = false;           // for its roof, or so its run says
  std::string text(std::string_view column) const { return row->text(column); }
  std::optional<double> value(std::string_view column) const;
  bool peer = false;    // a time that was measured elsewhere; no case of a run
  bool judged() const;  // not skip, not unsupported
  bool passed() const { return text("status") == "pass"; }
};

struct DeviceContent {
  std::string name, backend, arch;
  std::vector<RoofLine> roofs;
  int roof_rows = 0;
  std::vector<const Entry*> timed;  // the oracle's rows are not
};

// Who is compared: an implementation on a device.
struct Subject {
  std::string device, impl, label;
  auto operator<=>(const Subject&) const = default;
};
struct ComparedCase {
  const Entry* any;                   // names the case and its condition
  std::vector<const Entry*> entries;  // one a subject; null where it has no such row
};
struct ComparedOp {
  std::string op;
  std::vector<ComparedCase> cases;
  // Geometric mean of the first subject's time over this one's, over the cases that both have; none
  // where they share none. Above 1: this one is faster.
  std::vector<std::optional<double>> speed_up;
  std::vector<int> shared;
};
struct Comparison {
  std::vector<Subject> subjects;  // the first is what the others are held against
  std::vector<ComparedOp> ops;
  ComparedOp all;  // of all ops, without cases
};

// Rows of one run on one machine.
struct Provenance {
  std::string run_id, tool, git_sha, device, arch, driver, toolkit, first_utc, last_utc;
  int rows = 0, throttled = 0;
  std::optional<double> least_mhz, most_mhz;
  std::string seeds;
};

struct Content {
  std::vector<std::string> files;
  std::vector<Entry> entries, peers, roofs;
  std::vector<std::string> ops;  // in the order of the rows
  std::vector<DeviceContent> devices;
  std::map<std::string, int> statuses;
  std::optional<Comparison> comparison;  // where two subjects share a case
  std::vector<Provenance> provenance;
  std::vector<TargetResult> targets;

  // Roofs count as in the last line of their run.
  int judged() const;
  int passed() const;
  // Not passed, or too fast; the worst first.
  std::vector<const Entry*> bad() const;
  std::vector<const Entry*> not_run() const;
  std::string headline() const;  // "PASS 141 of 141", "FAIL: 3 of 141 not passed"
};

Content make_content(const PageInput& input);

std::optional<Comparison> compare_subjects(const std::vector<const Entry*>& entries,
                                           const std::vector<std::string>& ops);
// Time of the first over that of the other; none where one is missing.
std::optional<double> speed_up(const ComparedCase& c, size_t subject);

// What there is to say of an entry that is bad: a line each.
std::vector<std::string> remarks(const Entry& entry);
// "55 rows of 14 ops and 2 roofs"
std::string size_text(const Content& content);

// "decode:rows=4" of "qsa.attend/decode:rows=4"
std::string short_id(const Entry& entry);
// "cold graph bf16"
std::string condition(const Entry& entry);
// Three to four digits: "0.0123", "4.71", "437.2", "5206"; empty where there is none.
std::string digits(std::optional<double> value);
// "34.1 %", "12.0 % of datasheet", "unknown"
std::string share_text(const Entry& entry);
std::string roof_text(const RoofLine& roof);  // "4123 GB/s"
std::string clock_text(const Provenance& p);  // "1755 – 1980", "not read"
std::string time_text(const Provenance& p);   // "2026-11-30T16:20:53Z to 2026-11-30T16:22:10Z"

}  // namespace harness::page
