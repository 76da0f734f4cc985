// SPDX-License-Identifier: Apache-2.0
// One run of a tool: its reports, its counts, what it says on the terminal, its exit code.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "harness/judge/verdict.h"
#include "harness/ops/card.h"
#include "harness/plugins/device.h"
#include "harness/report/row.h"
#include "harness/report/sink.h"
#include "harness/run/watchdog.h"

namespace cli {

class Session {
 public:
  // Opens the reports, so that a path that cannot be written ends the run before it begins
  // (BadRequest).
  Session(const Tool& tool, const VerbName& verb, const Options& options);

  // Lines for people; with a report on standard output they go to standard error.
  void say(const std::string& line);       // not with -q
  void complain(const std::string& line);  // always, to standard error

  // Identity and machine of a row, filled from a case, a device (nullptr: the host) and an
  // implementation's label. `selection`: the words that select the case, after the verb.
  harness::Row row_of(const harness::Case& made, const harness::Device* device,
                      const std::string& implementation, const std::string& selection) const;

  // The row that is written with status `timeout` where `watched` does not return in time.
  template <class Work>
  auto watched(const harness::Row& row, Work&& work) {
    set_current(row);
    const harness::Watched watch(*watchdog_);
    return work();
  }

  // Counts, writes and prints one row. `judged` is false for rows that time something which is no
  // kernel under test.
  void finish_row(harness::Row row, harness::Verdict verdict, bool survived = false,
                  bool judged = true);
  void bad_input(const std::string& file, const std::string& what);  // a file that cannot be judged
  bool should_stop() const { return stop_; }  // --fail-fast and a case did not pass

  void summarize_op(std::string_view op);  // the line of an op, once its cases are through
  int end();                               // the last line; the exit code

  const Options& options() const { return options_; }
  const Tool& tool() const { return tool_; }

 private:
  void set_current(const harness::Row& row);
  int give_up();  // on the watchdog's thread
  void print(const harness::Row& row, const harness::Verdict& verdict);

  struct OpLine {
    std::map<std::string, int> by_status;
    double worst_share = 0;
    int findings = 0;
  };

  const Tool& tool_;
  const VerbName& verb_;
  const Options& options_;
  std::string run_id_;
  FILE* out_;
  harness::Reports reports_;
  std::mutex mutex_;  // counts and current row: the watchdog's thread reads them
  Tally tally_;
  harness::Row current_;
  std::map<std::string, OpLine, std::less<>> ops_;
  bool stop_ = false;
  std::unique_ptr<harness::Watchdog> watchdog_;  // last: its thread uses all of the above
};

// "cuda:0 (NVIDIA H200, sm_90)", for the first line of a run.
std::string describe(const harness::Device& device);
// The flags that bring back where a case ran: "-d simt --wave 64 --order seed:3 --impl portable".
std::string target_flags(const Options& options, const harness::Device* device,
                         const std::string& implementation);

}  // namespace cli
