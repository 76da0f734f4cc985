// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/card.h"

#include <algorithm>
#include <utility>

#include "harness/judge/compare.h"

namespace harness {

namespace {

std::vector<const Card*>& registry() {
  static std::vector<const Card*> all;  // filled by registrations before main
  return all;
}

toolkit::Shape shape_of(const Case& c, const toolkit::Contract& contract, std::string_view output) {
  if (const auto it = c.inputs.find(output); it != c.inputs.end())
    return it->second.shape;  // in place
  const HostCall call(c);
  for (const toolkit::OutputSpec& o : contract.outputs(toolkit::Args(contract, call.call())))
    if (o.name == output) return o.shape;
  return {};
}

}  // namespace

const std::vector<const Card*>& cards() { return registry(); }

const Card* find_card(std::string_view op) {
  for (const Card* c : registry())
    if (c->op() == op) return c;
  return nullptr;
}

CardRegistration::CardRegistration(const Card* card) {
  auto& all = registry();
  all.insert(std::upper_bound(all.begin(), all.end(), card,
                              [](const Card* a, const Card* b) { return a->op() < b->op(); }),
             card);
}

Verdict Card::judge(const Case& c, const reference::Result& oracle, const TensorMap& actual) const {
  Verdict verdict;
  verdict.status = Status::skip;
  verdict.reason = "no result to judge";
  bool first = true;
  for (const auto& [name, tensor] : actual) {
    const auto truth = oracle.outputs.find(name);
    if (truth == oracle.outputs.end()) {
      std::string known;
      for (const auto& [output, unused] : oracle.outputs)
        known += (known.empty() ? "" : ", ") + output;
      throw toolkit::Violation(op(), name, "an output of the op (" + known + ")",
                               "a result of that name");
    }
    const Verdict part = compare(op(), name, truth->second, tensor,
                                 [&](int64_t linear) { return place(c, truth->first, linear); });
    if (std::exchange(first, false))
      verdict = part;
    else
      fold(verdict, part);
  }
  verdict.findings.insert(verdict.findings.end(), oracle.findings.begin(), oracle.findings.end());
  return verdict;
}

std::string Card::place(const Case& c, std::string_view output, int64_t linear) const {
  const toolkit::Shape shape = shape_of(c, contract(), output);
  toolkit::Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = linear % std::max<int64_t>(shape[d], 1);
    linear /= std::max<int64_t>(shape[d], 1);
  }
  return shape.empty() ? "element " + std::to_string(linear) : "element " + toolkit::to_text(index);
}

}  // namespace harness
