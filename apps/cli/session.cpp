// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iostream>

#include "cli/outputs.h"
#include "cli/plan.h"
#include "cli/resume.h"
#include "cli/version.h"
#include "harness/measure/machine.h"
#include "harness/plugins/errors.h"
#include "harness/report/read_rows.h"
#include "harness/run/execute.h"
#include "harness/run/isolate.h"
#include "toolkit/dtype.h"

namespace cli {

using harness::Row;
using harness::Status;
using harness::Verdict;

namespace {

std::string utc_now(const char* format) {
  return fmt::format(fmt::runtime(format), fmt::gmtime(std::chrono::system_clock::now()));
}

std::string join(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "; "));
}

// The dtype that names a case: the first tensor of the contract.
std::string dtype_of(const harness::Case& made) {
  const harness::Card* card = harness::find_card(made.op);
  if (!card) return {};
  for (const auto& spec : card->contract().tensors)
    if (const auto it = made.inputs.find(spec.name); it != made.inputs.end())
      return std::string(toolkit::name_of(it->second.dtype));
  return {};
}

std::string flavour_of(const harness::Case& made) {
  if (const auto it = made.scalars.find("fp8_flavour"); it != made.scalars.end()) return it->second;
  for (const auto& [name, t] : made.inputs)
    if (t.fp8_flavour) return std::string(toolkit::name_of(t.fp8_flavour));
  return {};
}

// "portable on simt"; an oracle and a dumped result are on no backend.
std::string who(const Row& row) {
  const std::string backend = row.text("backend");
  if (backend.empty() || backend == "host") return row.text("impl");
  return row.text("impl").empty() ? backend : row.text("impl") + " on " + backend;
}

constexpr const char* kKeyLine = "key ";  // beside Session::kRoofLine

bool is_bad(Status s) { return s != Status::pass && s != Status::skip && s != Status::unsupported; }

// How far beyond or within the bound; exact outputs have none.
std::string share_text(const Verdict& v) {
  if (v.bound == 0 && v.used_share == 0) return "exact";
  return v.used_share > 1 ? fmt::format("{:.3g} times its bound", v.used_share)
                          : fmt::format("{:.3g} of its bound", v.used_share);
}

}  // namespace

Session::Session(const Tool& tool, const VerbName& verb, const Options& options)
    : tool_(tool), verb_(verb), options_(options), progress_(options.quiet ? 0 : options.progress) {
  run_id_ = fmt::format("{}-{:x}", utc_now("{:%Y%m%dT%H%M%SZ}"), ::getpid());
  out_ = stdout;
  if (is_child()) {
    prepare_child();
    return;
  }
  const std::vector<std::string> outputs{options.csv, options.json, options.junit,
                                         options.markdown};
  std::vector<std::string> dumps = options.files;
  dumps.insert(dumps.end(), options.load.begin(), options.load.end());
  check_outputs(dumps, outputs);
  const auto open = [&](const std::string& path, auto make) {
    if (!path.empty()) reports_.open(make(path));
  };
  if (options.resume && options.csv != "-" && !options.csv.empty())
    found_ = read_earlier_rows(options.csv, tool.name, git_sha());
  else if (options.resume)
    throw harness::BadRequest("--resume goes on with the rows of a file: it needs --csv FILE");
  for (auto it = found_.begin(); it != found_.end();) {
    const bool again = worth_another_try(it->second, options);
    if (again) retried_.push_back(it->second);
    it = again ? found_.erase(it) : std::next(it);
  }
  open(options.csv, harness::csv_sink);
  open(options.json, harness::json_sink);
  open(options.junit, harness::junit_sink);
  open(options.markdown, harness::markdown_sink);
  out_ = std::ranges::find(outputs, "-") != outputs.end() ? stderr : stdout;
  if (!found_.empty() && (git_sha() == "unknown" || git_sha().ends_with("-dirty")))
    say(
        fmt::format("note: {} has rows of a build that calls itself '{}', as this one does; that "
                    "they are the same binary is not checked",
                    options.csv, git_sha()));
  watchdog_ = std::make_unique<harness::Watchdog>(options.timeout_s, [this] { return give_up(); });
  interrupt_ = std::make_unique<harness::Interrupt>([this](int s) { return interrupted(s); });
}

// The parent has opened the reports and holds the time limit; an interrupt is for it, too.
void Session::prepare_child() {
  harness::die_with_parent();
  for (std::string line; std::getline(std::cin, line);)
    if (line.starts_with(kRoofLine))
      handed_roofs_.push_back(line.substr(std::strlen(kRoofLine)));
    else if (line.starts_with(kKeyLine)) {
      const size_t status = std::strlen(kKeyLine), key = line.find(' ', status) + 1;
      found_[line.substr(key)].set("status", line.substr(status, key - 1 - status));
    }
  watchdog_ = std::make_unique<harness::Watchdog>(0, [] { return 0; });
}

void Session::send(const harness::Message& message) {
  const std::string line = to_line(message) + "\n";
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = ::write(harness::kChildLines, line.data() + at, line.size() - at);
    if (n < 0 && errno != EINTR) ::_exit(kDevice);  // nobody listens
    if (n > 0) at += n;
  }
}

void Session::say(const std::string& line) {
  if (options_.quiet || is_child()) return;
  progress_.clear();
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void Session::complain(const std::string& line) {
  progress_.clear();
  fmt::print(stderr, "{}: {}\n", tool_.name, line);
}

Row Session::row_of(const harness::Case& made, const harness::Device* device,
                    const std::string& implementation, const std::string& selection) const {
  Row row;
  row.set("schema", int64_t{harness::kSchema});
  row.set("run_id", run_id_);
  row.set("tool", std::string(tool_.name));
  row.set("git_sha", std::string(git_sha()));
  row.set("utc", utc_now("{:%Y-%m-%dT%H:%M:%SZ}"));
  row.set("op", made.op);
  row.set("impl", implementation);
  row.set("case_id", made.id);
  row.set("shape", made.shape);
  row.set("preset", made.preset);
  if (options_.files.empty() && options_.load.empty())
    row.set("seed", static_cast<int64_t>(made.seed));
  if (device) {
    const tk_device_info& info = device->info();
    row.set("backend", device->backend());
    row.set("device", std::string(info.name));
    row.set("arch", std::string(info.arch));
    row.set("driver", std::string(info.driver));
    row.set("toolkit", std::string(info.toolkit));
  } else {
    row.set("backend", std::string("host"));
    row.set("device", harness::host_cpu());
    row.set("arch", harness::host_arch());
    row.set("toolkit", harness::host_compiler());
  }
  row.set("dtype", dtype_of(made));
  row.set("fp8_flavour", flavour_of(made));
  row.set("repro", fmt::format("{} {} {}{}", tool_.name, verb_.word, selection,
                               target_flags(options_, device, implementation)));
  return row;
}

std::string target_flags(const Options& o, const harness::Device* device,
                         const std::string& implementation) {
  std::string text;
  if (device) text += " -d " + device->name();
  if (device && device->backend() == "simt") {
    if (o.wave) text += fmt::format(" --wave {}", o.wave);
    if (!o.order.empty()) text += " --order " + o.order;
  }
  for (const auto& plugin : o.plugins) text += " --plugin " + shell_word(plugin);
  if (device && !implementation.empty()) text += " --impl " + shell_word(implementation);
  if (!o.plant.empty()) text += " --plant " + shell_word(o.plant);
  if (o.judge_rows) text += fmt::format(" --judge-rows {}", o.judge_rows);
  if (o.strict) text += " --strict";
  return text;
}

Row Session::finish_row(Row row, Verdict v, bool survived, bool judged) {
  if (options_.strict && v.status == Status::pass && !v.findings.empty()) {
    v.status = Status::fail;
    v.reason = "finding: " + v.findings.front();
  }
  const bool bad = is_bad(v.status);
  if (is_child()) {
    send({harness::Message::Kind::row, row, v, survived, judged, {}});
    if (v.status == Status::error) {  // the context may be broken, and the next row is not to blame
      send({harness::Message::Kind::again, {}, {}, false, true, {}});
      ::_exit(kPass);
    }
    stop_ = bad && options_.fail_fast;
    return row;
  }
  row.set("run_id", run_id_);
  row.set("status", std::string(name_of(v.status)));
  row.set("reason", v.reason);
  row.set("findings", join(v.findings));
  if (v.judged > 0) {
    row.set("err_max_abs", v.err_max_abs);
    row.set("err_rel_l2", v.err_rel_l2);
    row.set("bound", v.bound);
    row.set("used_share", v.used_share);
    row.set("mismatches", v.mismatches);
    row.set("nonfinite", v.nonfinite);
    row.set("first_bad", v.first_bad);
  }
  {
    const std::lock_guard lock(mutex_);
    if (judged || bad) tally_.count(v.status, survived);
    OpLine& line = ops_[row.text("op")];
    if (judged || bad) ++line.by_status[row.text("status")];
    if (v.judged > 0) line.worst_share = std::max(line.worst_share, v.used_share);
    line.findings += static_cast<int>(v.findings.size());
    if (options_.isolate) finished_[row_key(row)] = row.text("status");
    write(row);
  }
  print(row, v);
  if (bad && options_.fail_fast) stop_ = true;
  return row;
}

void Session::write(const Row& row) {
  std::erase_if(retried_, [&](const Row& earlier) {
    const bool same = is_another_try(earlier, row);
    if (same) reports_.drop_earlier(earlier);
    return same;
  });
  reports_.add(row);
}

void Session::print(const Row& row, const Verdict& v) {
  const bool routine = !is_bad(v.status);
  if (routine && !options_.verbose && row.text("time_us_median").empty() && v.notes.empty()) return;
  std::string word(name_of(v.status));
  if (!routine) std::ranges::transform(word, word.begin(), ::toupper);
  std::string line = fmt::format("{} {} [{}]", word, row.text("case_id"), who(row));
  if (v.judged > 0 && routine) line += "  " + share_text(v);
  if (!row.text("time_us_median").empty())
    line += fmt::format("  {:.2f} us{}{}", std::get<double>(row.at("time_us_median")),
                        row.text("l2").empty() ? "" : " " + row.text("l2"),
                        row.text("launch").empty() ? "" : " " + row.text("launch"));
  if (!v.reason.empty()) line += (routine ? "  " : "\n    ") + v.reason;
  if (!routine) {
    if (!v.first_bad.empty() && v.first_bad != v.reason) line += "\n    " + v.first_bad;
    if (v.used_share > 1 && std::isfinite(v.used_share))
      line += fmt::format("\n    worst error {}", share_text(v));
    line += "\n    repro: " + row.text("repro");
  }
  for (const auto& note : v.notes) line += "\n    " + note;
  if (options_.verbose || !routine)
    for (const auto& finding : v.findings) line += "\n    finding: " + finding;
  say(line);
}

void Session::bad_input(Row row, const std::string& what) {
  if (is_child()) return send({harness::Message::Kind::bad_input, row, {}, false, true, what});
  complain(what);
  row.set("run_id", run_id_);
  row.set("status", std::string(name_of(Status::error)));
  row.set("reason", what);
  const Row* known = earlier(row);
  const std::lock_guard lock(mutex_);
  known ? reports_.add_earlier(*known) : write(row);
  tally_.count_bad_input();
  if (options_.fail_fast) stop_ = true;
}

void Session::begin(const Row& row) {
  if (is_child()) return send({harness::Message::Kind::begin, row, {}, false, true, {}});
  const std::lock_guard lock(mutex_);
  current_ = row;
}

bool Session::there(const Row& row) {
  const std::string key = row_key(row);
  if (finished_.contains(key)) return true;
  const auto it = found_.find(key);
  if (it == found_.end()) return false;
  if (is_child()) {
    send({harness::Message::Kind::there, row, {}, false, true, {}});
    return true;
  }
  if (!resumed_.insert(key).second) return true;
  const Status status = harness::status_from(it->second.text("status")).value();
  reports_.add_earlier(it->second);
  const std::lock_guard lock(mutex_);
  // A row of the host times the oracle, which is not judged.
  if (is_bad(status) || row.text("backend") != "host") {
    tally_.count(status);
    ++ops_[row.text("op")].by_status[std::string(name_of(status))];
  }
  return true;
}

bool Session::lost_before(const Row& row) {
  const auto it = found_.find(row_key(row));
  if (it == found_.end()) return false;
  const std::string status = it->second.text("status");
  return (status == "timeout" || status == "crash" || status == "skip") && there(row);
}

const Row* Session::earlier(const Row& row) const {
  const auto it = found_.find(row_key(row));
  return it == found_.end() ? nullptr : &it->second;
}

std::string Session::keys_of(const std::string& case_id) const {
  std::string lines;
  for (const auto& [key, status] : finished_)
    if (key_is_of(key, case_id)) lines += kKeyLine + status + " " + key + "\n";
  for (const auto& [key, row] : found_)
    if (key_is_of(key, case_id)) lines += kKeyLine + row.text("status") + " " + key + "\n";
  return lines;
}

int Session::give_up() {
  const std::lock_guard lock(mutex_);
  current_.set("status", std::string("timeout"));
  current_.set("reason", too_slow(options_.timeout_s));
  tally_.count(Status::timeout);
  write(current_);
  reports_.finish();
  fmt::print(
      out_,
      "TIMEOUT {} [{}]\n    {}; the run ends here, later cases did not run\n    repro: {}\n{}\n",
      current_.text("case_id"), who(current_), current_.text("reason"), current_.text("repro"),
      tally_.line());
  std::fflush(out_);
  return tally_.exit_code();
}

int Session::interrupted(int signal) {
  mutex_.lock();  // for good: no row may begin any more
  harness::kill_child();
  progress_.clear();
  reports_.finish();
  fmt::print(out_, "INTERRUPTED by {}: rows that ended are written; {}{}\n", sigabbrev_np(signal),
             tally_.line(),
             options_.csv.empty() || options_.csv == "-"
                 ? ""
                 : "; the same command with --resume goes on");
  std::fflush(out_);
  return 128 + signal;
}

void Session::summarize_op(std::string_view op) {
  const auto it = ops_.find(op);
  if (it == ops_.end()) return;
  const OpLine& line = it->second;
  std::string text;
  for (const auto& [status, n] : line.by_status) text += fmt::format("  {:>4} {}", n, status);
  if (line.by_status.contains("pass") && line.worst_share > 0)
    text += fmt::format("  worst error {:.2g} of its bound", line.worst_share);
  if (line.findings) text += fmt::format("  {} findings about the input (-v)", line.findings);
  if (!text.empty()) say(fmt::format("{:<14}{}", op, text));
}

int Session::end() {
  if (is_child()) {
    send({});
    ::_exit(kPass);  // what it holds dies with it
  }
  interrupt_.reset();
  progress_.clear();
  reports_.finish();
  if (!resumed_.empty())
    say(fmt::format("resumed: {} row{} already in {}, not run again", resumed_.size(),
                    resumed_.size() == 1 ? "" : "s", options_.csv));
  fmt::print(out_, "{}\n", tally_.line());
  std::fflush(out_);
  return tally_.exit_code();
}

std::string describe(const harness::Device& device) {
  const tk_device_info& info = device.info();
  const std::string_view name = info.name;
  if (name.starts_with(device.backend())) return std::string(name);  // "simt (host, 32 lanes)"
  return fmt::format("{} ({}{}{})", device.name(), name, info.arch[0] ? ", " : "", info.arch);
}

}  // namespace cli
