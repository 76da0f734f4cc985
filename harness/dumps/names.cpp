// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/names.h"

#include <fmt/format.h>

#include "harness/judge/stages.h"
#include "harness/ops/names.h"

namespace harness {

namespace {

bool is_input(toolkit::Role r) {
  return r == toolkit::Role::input || r == toolkit::Role::optional_input ||
         r == toolkit::Role::in_place;
}
bool is_result(toolkit::Role r) { return !is_input(r) || r == toolkit::Role::in_place; }

const toolkit::TensorSpec* find_spec(const toolkit::Contract& c, std::string_view name) {
  for (const toolkit::TensorSpec& t : c.tensors)
    if (t.name == name) return &t;
  return nullptr;
}

// "actual.output" -> actual, "output".
NameKind strip_prefix(std::string_view& name) {
  for (const auto& [prefix, kind] : {std::pair(std::string_view("expected."), NameKind::expected),
                                     std::pair(std::string_view("actual."), NameKind::actual)})
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      return kind;
    }
  return NameKind::input;
}

[[noreturn]] void no_result(const toolkit::Contract& c, std::string_view name,
                            std::string_view result) {
  std::vector<std::string> words;
  std::string all;
  for (const toolkit::TensorSpec& t : c.tensors)
    if (is_result(t.role)) {
      words.emplace_back(t.name);
      all += (all.empty() ? "" : ", ") + words.back();
    }
  throw toolkit::Violation(c.op, name, "a result of the op (" + all + ")",
                           "'" + std::string(result) + "'" + nearest_hint(result, words));
}

}  // namespace

CaseNames::CaseNames(const Card& card) : step_(card.op() == "qsa.step") {
  contracts_.push_back(&card.contract());
  if (step_)
    for (const std::string_view stage : kStages)
      if (const Card* c = find_card("qsa." + std::string(stage)))
        contracts_.push_back(&c->contract());
}

NamePlace CaseNames::step_place(std::string_view name) const {
  const size_t dot = name.find('.');
  for (const toolkit::Contract* c : std::span(contracts_).subspan(1)) {
    const std::string stage(c->op.substr(4));
    if (dot == std::string_view::npos) {  // shared by all stages that know it
      const toolkit::TensorSpec* spec = find_spec(*c, name);
      if (spec && is_input(spec->role)) return {NameKind::input, std::string(name)};
    } else if (name.substr(0, dot) == stage) {
      std::string_view rest = name.substr(dot + 1);
      const NameKind kind = strip_prefix(rest);
      const toolkit::TensorSpec* spec = find_spec(*c, rest);
      if (kind != NameKind::input && !(spec && is_result(spec->role))) no_result(*c, name, rest);
      if (!spec || (kind == NameKind::input && !is_input(spec->role))) return {};
      return {kind, stage + "." + std::string(rest)};
    }
  }
  std::string_view rest = name.substr(dot == std::string_view::npos ? 0 : dot + 1);
  if (strip_prefix(rest) != NameKind::input)
    throw toolkit::Violation(contracts_[0]->op, name,
                             fmt::format("a stage ({})", fmt::join(kStages, ", ")),
                             "'" + std::string(name.substr(0, dot)) + "'");
  return {};
}

NamePlace CaseNames::place_of(std::string_view name) const {
  std::string_view rest = name;
  const NameKind kind = strip_prefix(rest);
  const toolkit::TensorSpec* spec = find_spec(*contracts_[0], rest);
  if (kind != NameKind::input) {
    if (!spec || !is_result(spec->role)) no_result(*contracts_[0], name, rest);
    return {kind, std::string(rest)};
  }
  if (spec && is_input(spec->role)) return {NameKind::input, std::string(name)};
  return step_ ? step_place(name) : NamePlace{};
}

std::string CaseNames::hint(std::string_view name) const {
  std::vector<std::string> words;
  for (const toolkit::Contract* c : contracts_)
    for (const toolkit::TensorSpec& t : c->tensors) {
      if (t.name == name)
        return "; results are written actual." + std::string(name) + " or expected." +
               std::string(name);
      words.emplace_back(t.name);
    }
  return nearest_hint(name, words);
}

std::vector<std::string> CaseNames::scalars() const {
  std::vector<std::string> names;
  for (const toolkit::Contract* c : contracts_)
    for (const toolkit::ScalarSpec& s : c->scalars) names.emplace_back(s.name);
  return names;
}

bool CaseNames::has_scalar(std::string_view name) const {
  for (const toolkit::Contract* c : contracts_)
    for (const toolkit::ScalarSpec& s : c->scalars)
      if (s.name == name) return true;
  return false;
}

}  // namespace harness
