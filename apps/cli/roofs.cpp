// SPDX-License-Identifier: Apache-2.0
#include "cli/roofs.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/timing.h"
#include "cli/verbs.h"
#include "harness/measure/gpu_monitor.h"
#include "harness/measure/roofs.h"
#include "harness/report/read_rows.h"
#include "harness/run/message.h"

namespace cli {

using harness::Probe;
using harness::Row;
using harness::Status;
using harness::Verdict;

namespace {

// What the row of a roof adds to its numbers.
std::string note_of(const harness::Roof& roof, const std::vector<harness::Roof>& before) {
  std::string note = roof.width;
  const double rate = roof.cost.flops > 0 ? roof.cost.flops : roof.cost.bytes;
  if (rate > 0)
    note += fmt::format(", {:.0f} {}", rate / roof.time.median * 1e-3,
                        roof.cost.flops > 0 ? "GFLOP/s" : "GB/s");
  if (roof.probe->op == "roof.empty" && !before.empty() && before.back().probe->op == "roof.empty")
    note += fmt::format(", {:.2f} us for each further launch",
                        (roof.time.median - before.back().time.median) / 10);
  return note;
}

// A kernel that copies has to keep up with the runtime's own copy, or it is no roof.
constexpr double kLeastOfMemcpy = 97;  // percent

class RoofBench {
 public:
  RoofBench(Session& session, Target& target, const harness::Device& device)
      : session_(session),
        device_(device),
        monitor_(device),
        set_(
            device,
            [&](std::string_view op) {
              return target.registry().implementations(device.backend(), op);
            },
            harness::probe_bytes(device)) {}

  std::vector<Row> run() {
    if (set_.probes().empty())
      session_.say(fmt::format("{}: no roofs, because its plugins have no probes (roof.read ...)",
                               device_.name()));
    for (const Probe& probe : set_.probes()) measure(probe);
    return rows_;
  }

 private:
  void measure(const Probe& probe) {
    harness::Case made;
    made.op = probe.op;
    made.id = probe.id;
    made.shape = probe.shape;
    Row row = session_.row_of(made, &device_, probe.implementation.label, "");
    row.set("repro", fmt::format("{} roofs{}{}", session_.tool().name,
                                 target_flags(session_.options(), &device_, ""),
                                 sampling_flags(session_.options())));
    row.set("dtype", std::string(probe.dtype ? toolkit::name_of(probe.dtype) : ""));
    row.set("l2", std::string(name_of(probe.cache)));
    const auto launch = session_.options().launch == "graph" && device_.graphs() && !probe.by_stream
                            ? harness::Launch::graph
                            : harness::Launch::stream;
    row.set("launch", std::string(name_of(launch)));
    if (const Row* earlier = session_.earlier(row)) {
      rows_.push_back(*earlier);
      session_.there(row);
      return;
    }
    Verdict verdict;
    try {
      auto rules = rules_of(session_.options());
      rules.throttled = [this] { return monitor_.throttled(); };
      monitor_.begin();
      const harness::Roof roof =
          session_.watched(row, [&] { return set_.measure(probe, launch, rules); });
      if (roof.flushed) row.set("flush_bytes", static_cast<int64_t>(roof.flushed));
      set_times(row, roof.time, roof.cost);
      set_readings(row, monitor_, roof.time);
      if (!roof.wrong.empty()) verdict.status = Status::fail;
      verdict.reason = roof.wrong.empty() ? note_of(roof, roofs_) : roof.wrong;
      hold_to_memcpy(verdict, row);
      hold_to_noise(verdict, roof.time, rules.max_noise_pct, monitor_.readings().reasons);
      roofs_.push_back(roof);
    } catch (const std::exception& e) {  // the other roofs can still be measured
      verdict.status = Status::error;
      verdict.reason = e.what();
    }
    rows_.push_back(session_.finish_row(std::move(row), verdict));
  }

  void hold_to_memcpy(Verdict& verdict, const Row& row) const {
    if (row.text("case_id") != "roof.copy/stream" || verdict.status != Status::pass) return;
    const auto memcpy = std::ranges::find_if(
        rows_, [](const Row& r) { return r.text("case_id") == "roof.copy/memcpy"; });
    if (memcpy == rows_.end() || memcpy->text("status") != "pass") return;
    const double pct = 100 * harness::number_in(row, "gbps").value_or(0) /
                       harness::number_in(*memcpy, "gbps").value_or(0);
    verdict.reason += fmt::format(", {:.1f} % of memcpy", pct);
    if (pct >= kLeastOfMemcpy) return;
    verdict.status = Status::inconclusive;
    verdict.reason += fmt::format(", wanted at least {} %", kLeastOfMemcpy);
  }

  Session& session_;
  const harness::Device& device_;
  harness::GpuMonitor monitor_;
  harness::ProbeSet set_;
  std::vector<harness::Roof> roofs_;
  std::vector<Row> rows_;
};

}  // namespace

void measure_roofs(Session& session, Target& target) {
  for (const auto& device : target.devices()) {
    if (!device.timed()) continue;
    device.select();
    target.roofs[device.name()] = RoofBench(session, target, device).run();
  }
}

std::string lines_of_roofs(const Target& target) {
  std::string lines;
  for (const auto& [device, rows] : target.roofs)
    for (const Row& row : rows)
      lines += Session::kRoofLine + device + " " +
               harness::to_line({harness::Message::Kind::row, row, {}, false, true, {}}) + "\n";
  return lines;
}

void take_roofs(const Session& session, Target& target) {
  for (const std::string& line : session.handed_roofs()) {
    const size_t blank = line.find(' ');
    if (const auto message = harness::from_line(line.substr(blank + 1)))
      target.roofs[line.substr(0, blank)].push_back(message->row);
  }
}

int roofs(const Tool& tool, const VerbName& verb, const Options& options) {
  Target target(options);
  Session session(tool, verb, options);
  if (!any_timed(target)) session.say("no timed device here: a roof is measured on a GPU");
  measure_roofs(session, target);
  return session.end();
}

}  // namespace cli
