// SPDX-License-Identifier: Apache-2.0
#include "harness/run/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/plugins/errors.h"

namespace harness {

void check_case(const Card& card, const Case& made) {
  const HostCall host(made);
  toolkit::Args(card.contract(), host.call()).check(false);
  card.check_data(made);
}

bool has_rows(const Card& card, const Case& made) {
  const HostCall host(made);
  const auto outputs = card.contract().outputs(toolkit::Args(card.contract(), host.call()));
  const auto empty = [](const toolkit::Shape& s) { return std::ranges::find(s, 0) != s.end(); };
  if (!outputs.empty())
    return !std::ranges::all_of(outputs, [&](const auto& o) { return empty(o.shape); });
  // An op that only changes tensors in place has no rows where something that it reads is empty.
  return std::ranges::all_of(card.contract().tensors, [&](const toolkit::TensorSpec& spec) {
    const auto it = made.inputs.find(spec.name);
    return spec.role != toolkit::Role::input || it == made.inputs.end() || it->second.count() > 0;
  });
}

Truth::Truth(const Card& card, const Case& made, int64_t rows)
    : card_(card),
      made_(made),
      sample_(sample_rows(card, made, rows)),
      findings_(card.findings(made)) {
  if (!card.wants_oracle()) return;
  const reference::Oracle oracle = reference::find(card.op());
  if (!oracle) throw std::logic_error(fmt::format("{} has no oracle", card.op()));
  const HostCall host(sample_ ? sample_->made : made);
  oracle_ = oracle(toolkit::Args(card.contract(), host.call()));
  for (auto& text : oracle_.findings) {
    if (sample_) text = with_own_rows(*sample_, text);
    if (std::ranges::find(findings_, text) == findings_.end()) findings_.push_back(text);
  }
}

Verdict Truth::judge(const TensorMap& actual) const {
  const HostCall host(made_);
  for (const auto& o : card_.contract().outputs(toolkit::Args(card_.contract(), host.call()))) {
    const auto it = actual.find(o.name);
    if (it == actual.end()) continue;
    const Tensor& t = it->second;
    if (t.shape != o.shape || t.dtype != o.dtype)
      throw toolkit::Violation(
          card_.op(), o.name,
          fmt::format("{} {}", toolkit::name_of(o.dtype), toolkit::to_text(o.shape)),
          fmt::format("{} {}", toolkit::name_of(t.dtype), toolkit::to_text(t.shape)));
  }
  Verdict verdict = sample_ ? judge_sample(actual) : card_.judge(made_, oracle_, actual);
  for (const auto& text : findings_)
    if (std::ranges::find(verdict.findings, text) == verdict.findings.end())
      verdict.findings.push_back(text);
  return verdict;
}

Verdict Truth::judge_sample(const TensorMap& actual) const {
  Verdict v = card_.judge(sample_->made, oracle_, rows_of(*sample_, actual));
  v.first_bad = with_own_rows(*sample_, v.first_bad);
  v.reason = with_own_rows(*sample_, v.reason);
  const auto add = [&](const std::string& text) {
    v.reason += (v.reason.empty() ? "" : "; ") + text;
  };
  if (const Unwritten gaps = unwritten_rows(*sample_, actual); gaps.rows > 0) {
    v.status = Status::fail;
    v.unwritten += gaps.rows;
    const std::string text = fmt::format("{}: unwritten={} of the other rows, the first row {}",
                                         gaps.output, gaps.rows, gaps.first);
    add(text);
    if (v.first_bad.empty()) v.first_bad = text;
  }
  add(fmt::format("judged {} of {} rows", sample_->rows.size(), sample_->all));
  return v;
}

void Truth::compare_expected(Verdict& verdict) const {
  if (made_.expected.empty()) return;
  const Verdict truth = judge(made_.expected);
  if (truth.status != Status::fail) return;
  const std::string text = "the oracle disagrees with expected." + truth.first_bad;
  verdict.reason += (verdict.reason.empty() ? "" : "; ") + text;
  verdict.status = Status::fail;
  if (verdict.first_bad.empty()) verdict.first_bad = truth.first_bad;
}

Ended run_once(const Device& device, const Implementation& implementation, Placement& placement) {
  std::array<char, 1024> message{};
  tk_call& call = placement.call();
  call.message = message.data();
  call.message_bytes = message.size();
  const auto ended = [&](tk_status status) -> Ended {
    const std::string text = message[0] ? message.data() : "it gives no reason";
    switch (status) {
      case TK_OK:
        return {};
      case TK_UNSUPPORTED:
        return {Status::unsupported, text};
      case TK_INVALID:
        return {Status::error, "refuses a call that keeps the contract: " + text};
      case TK_OUT_OF_MEMORY:
        return {Status::error, "out of memory: " + text};
      case TK_ERROR:
        return {Status::error, text};
      default:
        return {Status::error, fmt::format("returned the unknown status {}: {}", status, text)};
    }
  };
  const Stream stream(device);
  call.stream = stream.get();
  uint64_t workspace = 0;
  if (const tk_status s = implementation.op->workspace(&call, &workspace); s != TK_OK)
    return ended(s);
  placement.give_workspace(workspace);
  if (const tk_status s = implementation.op->run(&call); s != TK_OK) return ended(s);
  stream.synchronize();
  return {};
}

Outcome judge_results(const Truth& truth, TensorMap results, const std::optional<Fault>& plant,
                      const std::vector<std::string>& trespasses) {
  Outcome outcome;
  if (plant && !plant->plant(truth.made(), results)) {
    outcome.verdict.status = Status::skip;
    outcome.verdict.reason = fmt::format("the fault '{}' has no place in this case", plant->name);
    return outcome;
  }
  outcome.digest = digest_of(results);
  outcome.verdict = truth.judge(results);
  Verdict& verdict = outcome.verdict;
  for (const auto& text : trespasses) {
    verdict.status = Status::fail;
    verdict.reason += (verdict.reason.empty() ? "" : "; ") + text;
    if (verdict.first_bad.empty()) verdict.first_bad = text;
  }
  if (plant && verdict.status == Status::pass) {
    outcome.survived = true;
    verdict.status = Status::fail;
    verdict.reason = fmt::format("the planted fault '{}' was not noticed", plant->name);
  } else if (plant && verdict.reason.empty()) {
    verdict.reason = fmt::format("planted: {}", plant->name);
  }
  return outcome;
}

Outcome run_case(const Device& device, const Implementation& implementation, const Truth& truth,
                 const std::optional<Fault>& plant) {
  Outcome outcome;
  try {
    device.select();
    Placement placement(device, truth.card(), truth.made());
    const Ended ended = run_once(device, implementation, placement);
    if (ended.status != Status::pass) {
      outcome.verdict.status = ended.status;
      outcome.verdict.reason = ended.reason;
      return outcome;
    }
    outcome = judge_results(truth, placement.results(), plant, placement.trespasses());
    truth.compare_expected(outcome.verdict);
    return outcome;
  } catch (const DeviceError& e) {
    outcome.verdict.status = Status::error;
    outcome.verdict.reason = e.what();
    return outcome;
  }
}

std::string digest_of(const TensorMap& results) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto eat = [&](const void* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
      hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  };
  for (const auto& [name, t] : results) {
    const std::string head =
        fmt::format("{} {} {};", name, toolkit::name_of(t.dtype), toolkit::to_text(t.shape));
    eat(head.data(), head.size());
    const Tensor packed = t.dense() ? t : t.packed();
    eat(packed.data(), packed.count() * toolkit::bytes_of(packed.dtype));
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace harness
