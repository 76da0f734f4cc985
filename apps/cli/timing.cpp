// SPDX-License-Identifier: Apache-2.0
#include "cli/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/work.h"
#include "harness/measure/ceilings.h"
#include "harness/measure/kernel_timer.h"
#include "harness/measure/sampling.h"
#include "harness/plugins/errors.h"
#include "harness/run/execute.h"
#include "harness/run/fit.h"

namespace cli {

using harness::Cache;
using harness::Condition;
using harness::Row;
using harness::Status;
using harness::Verdict;

namespace {

constexpr std::string_view kOracle =
    "oracle (float64, host)";    // the only thing timed where no device is
constexpr double kMaxNoise = 5;  // percent, on a timed device
constexpr int kEmptySamples = 25;

// Adds to the one line that a verdict has.
void append(std::string& reason, const std::string& more) {
  if (!more.empty()) reason += (reason.empty() ? "" : "; ") + more;
}

}  // namespace

harness::SamplingRules rules_of(const Options& o) {
  harness::SamplingRules rules;
  rules.min_time_s = o.min_time_s;
  rules.max_time_s = 10 * o.min_time_s;  // as --help says
  rules.max_noise_pct = o.max_noise_pct >= 0 ? o.max_noise_pct : kMaxNoise;
  return rules;
}

void set_times(Row& row, const harness::Summary& s, const harness::Cost& cost) {
  row.set("samples", int64_t{s.samples});
  row.set("repeats", int64_t{1});
  row.set("time_us_min", s.min);
  row.set("time_us_q1", s.q1);
  row.set("time_us_median", s.median);
  row.set("time_us_q3", s.q3);
  row.set("median_lo_us", s.median_lo);
  row.set("median_hi_us", s.median_hi);
  row.set("noise_pct", s.noise_pct);
  row.set("bytes", cost.bytes);
  row.set("flops", cost.flops);
  if (cost.bytes > 0) row.set("intensity", cost.flops / cost.bytes);
  if (s.median > 0) {
    row.set("gbps", cost.bytes / s.median * 1e-3);
    row.set("gflops", cost.flops / s.median * 1e-3);
  }
}

void set_readings(Row& row, const harness::GpuMonitor& monitor, const harness::Summary& s) {
  if (!monitor.present()) return;
  const harness::GpuReadings& r = monitor.readings();
  if (r.clock_mhz > 0) row.set("clock_mhz", r.clock_mhz);
  if (r.power_w > 0) row.set("power_w", r.power_w);
  if (r.temp_c > 0) row.set("temp_c", r.temp_c);
  row.set("throttled", int64_t{s.discarded > 0});
}

void hold_to_noise(Verdict& v, const harness::Summary& s, double most, uint64_t reasons) {
  const std::string why = harness::throttle_words(reasons);
  if (s.discarded)
    append(v.reason, fmt::format("{} throttled samples {}", s.discarded,
                                 s.all_throttled ? "and no other" : "discarded"));
  if (!why.empty()) append(v.reason, "clock held back by " + why);
  if (s.outliers) append(v.reason, fmt::format("{} of {} outliers", s.outliers, s.samples));
  if (v.status != Status::pass) return;
  // More thrown away than kept: the card was not in a state to be measured.
  if (!s.all_throttled && s.discarded <= s.samples && s.noise_pct <= most) return;
  v.status = Status::inconclusive;
  if (s.noise_pct > most)
    append(v.reason,
           fmt::format("noise {:.2f} % of the median after {} samples, wanted at most {} %",
                       s.noise_pct, s.samples, most));
}

namespace {

// One implementation on its way through a case.
struct Candidate {
  harness::Implementation implementation;
  std::unique_ptr<harness::Placement> placement;
  harness::Outcome verified{};                                // before it is timed
  std::vector<std::unique_ptr<harness::Placement>> copies{};  // further ones, of a rotation
};

tk_dtype dtype_of(const harness::Truth& truth) {
  for (const auto& spec : truth.card().contract().tensors)
    if (const auto it = truth.made().inputs.find(spec.name); it != truth.made().inputs.end())
      return it->second.dtype;
  return 0;
}

class DeviceBench {
 public:
  DeviceBench(Session& session, Target& target, const harness::Device& device,
              const harness::Truth& truth, const std::string& selection)
      : session_(session),
        target_(target),
        device_(device),
        truth_(truth),
        selection_(selection),
        cost_(truth.card().cost(truth.made())),
        monitor_(device) {}

  double run() {
    verify();
    for (const Condition& condition : conditions()) time(condition);
    return last_median_;
  }

 private:
  Row row_of(const harness::Implementation& i) const {
    return session_.row_of(truth_.made(), &device_, i.label, selection_);
  }
  Row row_of(const harness::Implementation& i, const Condition& condition) const {
    Row row = row_of(i);
    row.set("l2", std::string(name_of(condition.cache)));
    row.set("launch", std::string(name_of(condition.launch)));
    return row;
  }

  std::vector<Condition> conditions() const {
    const Options& o = session_.options();
    const auto launch = o.launch == "graph" ? harness::Launch::graph : harness::Launch::stream;
    std::vector<Condition> asked;
    for (const Cache cache : {Cache::cold, Cache::warm, Cache::rotate})
      if ((o.l2 == "both" && cache != Cache::rotate) || o.l2 == name_of(cache))
        asked.push_back({cache, launch});
    return asked;
  }

  // An earlier run or child has written its row before it was timed, or all of its timed rows.
  bool there(const harness::Implementation& i) const {
    bool all = true;
    for (const Condition& condition : conditions())
      all = session_.there(row_of(i, condition)) && all;
    return all || session_.there(row_of(i));
  }

  // Only what is right is timed; the others get their row now.
  void verify() {
    const auto implementations = target_.implementations(device_, truth_.card().op());
    if (implementations.empty()) {
      Verdict v;
      v.status = Status::unsupported;
      v.reason = fmt::format("no implementation of {} on {}", truth_.card().op(), device_.name());
      Row row = session_.row_of(truth_.made(), &device_, "", selection_);
      if (!session_.there(row)) session_.finish_row(std::move(row), v);
    }
    for (const auto& i : implementations) {
      if (there(i)) {
        if (target_.only_best()) break;
        continue;
      }
      Row row = row_of(i);
      Verdict v;
      session_.begin(row);
      try {
        v.reason = harness::why_too_big(device_, i, truth_.card(), truth_.made(),
                                        session_.options().mem_fraction);
        if (!v.reason.empty()) {
          v.status = Status::skip;
          session_.finish_row(std::move(row), v);
          continue;
        }
        Candidate candidate{
            i, std::make_unique<harness::Placement>(device_, truth_.card(), truth_.made())};
        const auto ended = run_once(device_, i, *candidate.placement);
        v.status = ended.status;
        v.reason = ended.reason;
        if (v.status == Status::pass) {
          candidate.verified = judge_results(truth_, candidate.placement->results(), {},
                                             candidate.placement->trespasses());
          row.set("digest", candidate.verified.digest);
          v = candidate.verified.verdict;
        }
        if (v.status == Status::pass) {
          candidates_.push_back(std::move(candidate));
          if (target_.only_best()) break;
          continue;
        }
      } catch (const std::exception& e) {  // of the backend, or thrown by the kernel's host code
        v.status = Status::error;
        v.reason = e.what();
      }
      const bool serves = v.status != Status::unsupported;
      if (target_.only_best() && !serves && &i != &implementations.back()) continue;
      session_.finish_row(std::move(row), v);
      if (target_.only_best()) break;
    }
  }

  void time(Condition condition) {
    std::vector<Row> rows;
    std::vector<Candidate*> timed;
    std::vector<std::unique_ptr<harness::KernelTimer>> timers;
    for (auto& c : candidates_) {
      Row row = row_of(c.implementation, condition);
      if (session_.there(row)) continue;
      session_.begin(row);
      try {
        timers.push_back(std::make_unique<harness::KernelTimer>(device_, *c.implementation.op,
                                                                calls_of(c, condition), condition));
        if (timers.back()->flushed())
          row.set("flush_bytes", static_cast<int64_t>(timers.back()->flushed()));
        timers.back()->launch_once();  // the first replay also loads code
        rows.push_back(std::move(row));
        timed.push_back(&c);
      } catch (const harness::DeviceError& e) {
        if (timers.size() > timed.size()) timers.pop_back();
        Verdict v;
        v.status = Status::error;
        v.reason = e.what();
        session_.finish_row(std::move(row), v);
      }
    }
    if (timers.empty()) return;
    std::vector<harness::Sampler> samplers;
    for (auto& timer : timers) samplers.push_back([&timer] { return timer->sample(); });
    auto rules = rules_of(session_.options());
    rules.throttled = [this] { return monitor_.throttled(); };
    monitor_.begin();
    const auto summaries = take_samples(samplers, rules);
    for (size_t i = 0; i < timers.size(); ++i) {
      finish(std::move(rows[i]), *timed[i], *timers[i], summaries[i], condition.cache,
             rules.max_noise_pct);
      last_median_ = summaries[i].median;
    }
  }

  // The call of a candidate; in a rotation as many copies of it as it takes.
  std::vector<tk_call*> calls_of(Candidate& c, const Condition& condition) {
    std::vector<tk_call*> calls{&c.placement->call()};
    if (condition.cache != Cache::rotate) return calls;
    const uint64_t bytes = c.placement->device_bytes();
    const int copies = harness::rotation_copies(device_, bytes);
    if (!copies)
      throw harness::DeviceError(
          fmt::format("not rotated: {} copies of {} bytes would still lie in the L2 of {} bytes; "
                      "use --l2 cold",
                      harness::kMostCopies, bytes, device_.info().l2_bytes));
    while (static_cast<int>(calls.size()) < copies) {
      auto copy = std::make_unique<harness::Placement>(device_, truth_.card(), truth_.made());
      const auto ended = run_once(device_, c.implementation, *copy);
      if (ended.status != Status::pass) throw harness::DeviceError(ended.reason);
      calls.push_back(&copy->call());
      c.copies.push_back(std::move(copy));
    }
    return calls;
  }

  // Roofs, and whether the time is possible at all.
  void set_roofs(Row& row, Verdict& v, const harness::Summary& summary, Cache cache) {
    const harness::Work work{cost_, candidates_.front().placement->result_bytes(),
                             dtype_of(truth_)};
    const auto standing = stand(harness::ceilings_of(target_.roofs[device_.name()]), work, cache,
                                device_.info().l2_bytes, summary);
    if (standing.roof_gbps > 0) row.set("roof_gbps", standing.roof_gbps);
    if (standing.roof_gflops > 0) row.set("roof_gflops", standing.roof_gflops);
    if (standing.pct > 0) row.set("roof_pct", standing.pct);
    row.set("roof_source", standing.source);
    append(v.reason, standing.reason);
    if (standing.impossible && v.status == Status::pass) v.status = Status::impossible;
  }

  // The very bits that were found right before need not be judged again.
  harness::Outcome judged_as_timed(const Candidate& c) const {
    auto results = c.placement->results();
    const auto trespasses = c.placement->trespasses();
    if (trespasses.empty() && harness::digest_of(results) == c.verified.digest) return c.verified;
    return judge_results(truth_, std::move(results), {}, trespasses);
  }

  void finish(Row row, Candidate& c, harness::KernelTimer& timer, const harness::Summary& summary,
              Cache cache, double most) {
    session_.begin(row);
    std::vector<double> empty;
    for (int i = 0; i < kEmptySamples; ++i) empty.push_back(timer.sample_empty());
    set_times(row, summary, cost_);
    row.set("empty_us", harness::summarize(empty).median);
    // What was timed has to be right too: the same launch once more, into poisoned outputs.
    c.placement->reset();
    timer.launch_once();
    auto outcome = judged_as_timed(c);
    if (outcome.verdict.status == Status::fail)
      outcome.verdict.reason =
          "right before timing, wrong as it was timed; " + outcome.verdict.reason;
    set_readings(row, monitor_, summary);
    set_roofs(row, outcome.verdict, summary, cache);
    hold_to_noise(outcome.verdict, summary, most, monitor_.readings().reasons);
    row.set("digest", outcome.digest);
    session_.finish_row(std::move(row), outcome.verdict);
  }

  Session& session_;
  Target& target_;
  const harness::Device& device_;
  const harness::Truth& truth_;
  const std::string& selection_;
  const harness::Cost cost_;  // to count a prefill's tokens takes a while
  harness::GpuMonitor monitor_;
  std::vector<Candidate> candidates_;
  double last_median_ = 0;
};

double time_oracle(Session& session, const harness::Card& card, const harness::Case& made,
                   const std::string& selection) {
  Row row = session.row_of(made, nullptr, std::string(kOracle), selection);
  if (session.there(row)) return 0;
  const harness::HostCall host(made);
  const toolkit::Args args(card.contract(), host.call());
  const reference::Oracle oracle = reference::find(card.op());
  const auto sample = [&] {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = oracle(args);
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    return us.count();
  };
  const auto rules = rules_of(session.options());
  harness::Summary summary;
  try {
    summary = session.watched(row, [&] { return take_samples({sample}, rules); }).front();
  } catch (const std::bad_alloc& e) {
    session.finish_row(row, too_big_for_host(e));
    return 0;
  }
  set_times(row, summary, card.cost(made));
  Verdict v;  // the oracle is the yardstick: nothing is judged in this row
  if (session.options().max_noise_pct >= 0) hold_to_noise(v, summary, rules.max_noise_pct);
  session.finish_row(std::move(row), v, false, false);
  return summary.median;
}

}  // namespace

bool any_timed(Target& target) {
  return std::ranges::any_of(target.devices(), [](const auto& d) { return d.timed(); });
}

double time_case(Session& session, Target& target, const harness::Case& made,
                 const std::string& selection) {
  if (session.should_stop()) return 0;
  const harness::Card& card = *harness::find_card(made.op);
  if (!any_timed(target)) {
    judge_on_devices(session, target, card, made, selection);
    if (session.should_stop() || !harness::has_rows(card, made)) return 0;
    return time_oracle(session, card, made, selection);
  }
  if (!harness::has_rows(card, made)) {
    judge_on_devices(session, target, card, made, selection);  // says that there are none
    return 0;
  }
  double median = 0;
  for (const auto& device : target.devices()) {
    if (!device.timed()) continue;  // simt beside a GPU (-d all): qsa-verify is for it
    const Row row = session.row_of(made, &device, "", selection);
    if (session.lost_before(row)) continue;
    try {
      device.select();
      const auto truth = session.watched(row, [&] {
        return std::make_unique<harness::Truth>(card, made, session.options().judge_rows);
      });
      median = session.watched(
          row, [&] { return DeviceBench(session, target, device, *truth, selection).run(); });
    } catch (const std::bad_alloc& e) {
      session.finish_row(row, too_big_for_host(e));
    } catch (const std::exception& e) {  // the other cases go on
      Verdict v;
      v.status = Status::error;
      v.reason = e.what();
      session.finish_row(row, v);
    }
  }
  return median;
}

std::string measuring_flags(const Options& o) {
  return (o.l2 == Options().l2 ? "" : " --l2 " + o.l2) + sampling_flags(o);
}

std::string sampling_flags(const Options& o) {
  const Options defaults;
  std::string text;
  if (o.launch != defaults.launch) text += " --launch " + o.launch;
  if (o.min_time_s != defaults.min_time_s) text += fmt::format(" --min-time {}", o.min_time_s);
  if (o.max_noise_pct != defaults.max_noise_pct)
    text += fmt::format(" --max-noise {}", o.max_noise_pct);
  return text;
}

}  // namespace cli
