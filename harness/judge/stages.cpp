// SPDX-License-Identifier: Apache-2.0
#include "harness/judge/stages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "harness/ops/card.h"
#include "harness/tensors/walk.h"
#include "reference/oracle.h"

namespace harness {

namespace {

struct Link {
  std::string_view input, upstream;
};
constexpr Link kLinks[] = {
    {"score.k_cache", "store.cache"},
    {"topk.logits", "score.logits"},
    {"topk.visible_blocks", "score.visible_blocks"},
    {"expand.block_indices", "topk.block_indices"},
    {"attend.logical_indices", "expand.indices"},
};
// Inputs of a stage that go by another name in a step.
constexpr Link kOtherNames[] = {
    {"store.slot_mapping", "compressed_slots"},
    {"ring.slot_mapping", "ring_slots"},
    {"ring.cache", "compress.compressor_state_cache"},
    {"ring.rows", "compress.raw_keys"},
};

const Tensor* find(const TensorMap& map, std::string_view name) {
  const auto it = map.find(name);
  return it == map.end() ? nullptr : &it->second;
}

const Card& card_of(const std::string& op) {
  const Card* c = find_card(op);
  if (!c) throw std::logic_error("qsa.step: no card of " + op + " (a fault of the build)");
  return *c;
}

const Tensor* input_of(const Case& step, const TensorMap& actual, const std::string& stage,
                       std::string_view name) {
  const std::string own = stage + "." + std::string(name);
  if (const Tensor* t = find(step.inputs, own)) return t;
  for (const Link& l : kLinks)
    if (l.input == own) return find(actual, l.upstream);
  for (const Link& l : kOtherNames)
    if (l.input == own)
      if (const Tensor* t = find(step.inputs, l.upstream)) return t;
  return find(step.inputs, name);
}

std::optional<StageCase> stage_case(const Case& step, const TensorMap& actual,
                                    const std::string& stage, const std::string& op) {
  StageCase out;
  out.stage = stage;
  Case& c = out.made;
  c.op = op;
  c.id = step.id + "/" + stage;
  c.seed = step.seed;
  const toolkit::Contract& contract = card_of(op).contract();
  for (const toolkit::TensorSpec& t : contract.tensors) {
    const bool in_place = t.role == toolkit::Role::in_place;
    if (in_place || t.role == toolkit::Role::output || t.role == toolkit::Role::optional_output) {
      const std::string result =
          stage == "ring" ? "compress.compressor_state_cache" : stage + "." + std::string(t.name);
      if (const Tensor* a = find(actual, result)) c.actual.emplace(t.name, *a);
    }
    if (t.role == toolkit::Role::output || t.role == toolkit::Role::optional_output) continue;
    if (const Tensor* i = input_of(step, actual, stage, t.name)) c.inputs.emplace(t.name, *i);
  }
  if (c.actual.empty()) return std::nullopt;
  if (stage == "ring" && !c.inputs.contains("slot_mapping"))
    return std::nullopt;  // the ring is not written
  for (const toolkit::TensorSpec& t : contract.tensors)
    if ((t.role == toolkit::Role::input || t.role == toolkit::Role::in_place) &&
        !c.inputs.contains(t.name))
      throw toolkit::Violation(
          step.op, stage + "." + std::string(t.name),
          "a tensor of that name, a shared one, or the result of the stage before", "none");
  for (const auto& [key, text] : step.scalars)
    for (const toolkit::ScalarSpec& s : contract.scalars)
      if (s.name == key) c.scalars.emplace(key, text);
  if (stage == "topk" && !c.scalars.contains("k")) {
    const HostCall call(step);
    const toolkit::Args args(card_of(step.op).contract(), call.call());
    const int64_t ratio = args.integer("compress_ratio");
    if (ratio <= 0)
      throw toolkit::Violation(step.op, "compress_ratio", "an integer >= 1", std::to_string(ratio));
    c.scalars.emplace("k", std::to_string(args.integer("token_topk") / ratio));
  }
  return out;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const Tensor left = a.packed(), right = b.packed();
  return std::memcmp(left.data(), right.data(),
                     size_t(left.count() * toolkit::bytes_of(left.dtype))) == 0;
}

}  // namespace

bool has_stages(const Case& step) { return step.op == "qsa.step" && !step.actual.empty(); }

std::vector<StageCase> stage_cases(const Case& step, const TensorMap& actual) {
  std::vector<StageCase> out;
  for (const std::string_view stage : kStages) {
    if (auto c = stage_case(step, actual, std::string(stage), "qsa." + std::string(stage)))
      out.push_back(std::move(*c));
    if (stage == "store")
      if (auto c = stage_case(step, actual, "ring", "qsa.store")) out.push_back(std::move(*c));
  }
  return out;
}

std::vector<BrokenLink> broken_links(const Case& step, const TensorMap& actual) {
  std::vector<BrokenLink> out;
  for (const Link& l : kLinks) {
    const Tensor *given = find(step.inputs, l.input), *upstream = find(actual, l.upstream);
    if (given && upstream && !same_bits(*given, *upstream))
      out.push_back({std::string(l.input), std::string(l.upstream)});
  }
  return out;
}

void check_stages(const Case& step) {
  for (const StageCase& s : stage_cases(step, step.actual)) {
    const Card& card = card_of(s.made.op);
    const HostCall call(s.made);
    toolkit::Args(card.contract(), call.call()).check(false);
    card.check_data(s.made);
  }
}

std::vector<StageVerdict> judge_each_stage(const Case& step, const TensorMap& actual) {
  std::vector<StageVerdict> out;
  for (StageCase& s : stage_cases(step, actual)) {
    const Card& card = card_of(s.made.op);
    card.complete(s.made);
    const HostCall call(s.made);
    const toolkit::Args args(card.contract(), call.call());
    args.check(false);
    const reference::Oracle oracle = reference::find(s.made.op);
    if (!oracle)
      throw std::logic_error("qsa.step: no oracle of " + s.made.op + " (a fault of the build)");
    const reference::Result truth = oracle(args);
    out.push_back({s.stage, card.judge(s.made, truth, s.made.actual)});
    auto& findings = out.back().verdict.findings;
    for (const std::string& text : truth.findings)
      if (std::ranges::find(findings, text) == findings.end()) findings.push_back(text);
  }
  for (const BrokenLink& l : broken_links(step, actual)) {
    Verdict v;
    v.status = Status::fail;
    v.mismatches = 1;
    v.reason = v.first_bad =
        l.input + " is not what " + l.upstream + " was when its stage was done";
    out.push_back({"link", std::move(v)});
  }
  return out;
}

Verdict judge_stages(const Case& step, const TensorMap& actual) {
  Verdict all;
  all.status = Status::skip;
  all.reason = "no stage has a result";
  for (StageVerdict& s : judge_each_stage(step, actual)) {
    const std::string stage = s.stage + ": ";
    if (!s.verdict.reason.empty()) s.verdict.reason = stage + s.verdict.reason;
    if (!s.verdict.first_bad.empty()) s.verdict.first_bad = stage + s.verdict.first_bad;
    for (std::string& f : s.verdict.findings) f = stage + f;
    fold(all, s.verdict);
  }
  return all;
}

}  // namespace harness
