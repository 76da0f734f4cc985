// SPDX-License-Identifier: Apache-2.0
// One run of a tool: its reports, its counts, what it says on the terminal, its exit code.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "harness/judge/verdict.h"
#include "harness/ops/card.h"
#include "harness/plugins/device.h"
#include "harness/report/row.h"
#include "harness/report/sink.h"
#include "harness/run/interrupt.h"
#include "harness/run/message.h"
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

  // The work of `row` begins: the row that a time limit or a crash costs from here on.
  void begin(const harness::Row& row);
  // The row that is written with status `timeout` where `watched` does not return in time.
  template <class Work>
  auto watched(const harness::Row& row, Work&& work) {
    begin(row);
    const harness::Watched watch(*watchdog_);
    return work();
  }

  // Counts, writes and prints one row, and returns it as it is written. `judged` is false for rows
  // that time something which is no kernel under test.
  harness::Row finish_row(harness::Row row, harness::Verdict verdict, bool survived = false,
                          bool judged = true);
  // A case that cannot be made, or a file that cannot be read: its row and a line that says `what`.
  void bad_input(harness::Row row, const std::string& what);
  bool should_stop() const { return stop_; }  // --fail-fast and a case did not pass
  // The case of `row`, which names no implementation, did not come as far as any (it hung, crashed
  // or was too large), earlier or in another child: it is not tried again.
  bool lost_before(const harness::Row& row);
  // The row is there already (--resume, or an earlier child of this case) and counts as it is.
  bool there(const harness::Row& row);
  // The row of --resume with that key; nullptr where there is none.
  const harness::Row* earlier(const harness::Row& row) const;
  // In the child of an isolated case everything but messages to the parent is left out.
  bool is_child() const { return options_.isolated_case >= 0; }
  // What is there of a case, for its child: a line each. Its other lines begin with kRoofLine.
  std::string keys_of(const std::string& case_id) const;
  static constexpr const char* kRoofLine = "roof ";
  const std::vector<std::string>& handed_roofs() const { return handed_roofs_; }
  void progress(size_t done, size_t all, const std::string& case_id) {
    progress_.show(done, all, case_id);
  }

  void summarize_op(std::string_view op);  // the line of an op, once its cases are through
  int end();                               // the last line; the exit code

  const Options& options() const { return options_; }
  const Tool& tool() const { return tool_; }

 private:
  int give_up();                               // on the watchdog's thread
  int interrupted(int signal);                 // on a thread of its own
  void send(const harness::Message& message);  // to the parent
  void prepare_child();
  void print(const harness::Row& row, const harness::Verdict& verdict);
  void write(const harness::Row& row);  // instead of the row that it is another try of

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
  std::mutex mutex_;  // counts and current row: the threads of the time limit and of signals too
  Tally tally_;
  harness::Row current_;
  std::map<std::string, OpLine, std::less<>> ops_;
  bool stop_ = false;
  std::map<std::string, harness::Row> found_;  // rows before this run, by row_key
  std::vector<harness::Row> retried_;          // rows before this run that it tries again
  std::set<std::string> resumed_;              // of found_, those that belong to this run
  std::map<std::string, std::string> finished_;  // rows of this run: key and status
  std::vector<std::string> handed_roofs_;      // by the parent: what follows kRoofLine
  Progress progress_;
  // Last: their threads use all of the above.
  std::unique_ptr<harness::Watchdog> watchdog_;
  std::unique_ptr<harness::Interrupt> interrupt_;
};

// "cuda:0 (NVIDIA H200, sm_90)", for the first line of a run.
std::string describe(const harness::Device& device);
// The flags that bring back where a case ran: "-d simt --wave 64 --order seed:3 --impl portable".
std::string target_flags(const Options& options, const harness::Device* device,
                         const std::string& implementation);

}  // namespace cli
