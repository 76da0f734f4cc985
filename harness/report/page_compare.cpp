// SPDX-License-Identifier: Apache-2.0
// Machines and implementations side by side. A case of a subject is its last passed row with a
// time; cases with the same op, id and condition are the same.
#include <algorithm>
#include <cmath>
#include <set>

#include "harness/report/page_content.h"

namespace harness::page {

namespace {

using Key = std::vector<std::string>;

bool comparable(const Entry& entry) {
  return (entry.passed() || entry.peer) && entry.value("time_us_median").value_or(0) > 0 &&
         !entry.text("impl").starts_with("oracle");
}

// Labels say what tells the subjects apart.
void label(std::vector<Subject>& subjects) {
  std::set<std::string> devices, impls;
  for (const Subject& s : subjects) devices.insert(s.device), impls.insert(s.impl);
  for (Subject& s : subjects)
    s.label = impls.size() == 1     ? s.device
              : devices.size() == 1 ? s.impl
                                    : s.impl + " on " + s.device;
}

void summarize(ComparedOp& op, size_t subjects, const std::vector<ComparedCase>& cases) {
  for (size_t i = 0; i < subjects; ++i) {
    double sum = 0;
    int n = 0;
    for (const ComparedCase& c : cases)
      if (const auto ratio = speed_up(c, i)) sum += std::log(*ratio), ++n;
    op.shared.push_back(n);
    op.speed_up.push_back(n ? std::optional(std::exp(sum / n)) : std::nullopt);
  }
}

}  // namespace

std::optional<double> speed_up(const ComparedCase& c, size_t subject) {
  if (!c.entries[0] || !c.entries[subject]) return {};
  return *c.entries[0]->value("time_us_median") / *c.entries[subject]->value("time_us_median");
}

std::optional<Comparison> compare_subjects(const std::vector<const Entry*>& entries,
                                           const std::vector<std::string>& ops) {
  Comparison comparison;
  auto& subjects = comparison.subjects;
  const auto subject_of = [&](const Entry& e) {
    const Subject subject{e.text("device"), e.text("impl"), {}};
    const auto it = std::ranges::find(subjects, subject);
    if (it != subjects.end()) return static_cast<size_t>(it - subjects.begin());
    subjects.push_back(subject);
    return subjects.size() - 1;
  };
  // A peer comes first: what a reader wants to know is how far ours are from it.
  for (const bool peer : {true, false})
    for (const Entry* e : entries)
      if (comparable(*e) && e->peer == peer) subject_of(*e);
  if (subjects.size() < 2) return {};
  std::vector<ComparedCase> all;
  for (size_t op = 0; op < ops.size(); ++op) {
    std::map<Key, ComparedCase> by_key;
    std::vector<Key> order;
    for (const Entry* entry : entries) {
      const Entry& e = *entry;
      if (e.op != static_cast<int>(op) || !comparable(e)) continue;
      const Key key{e.text("case_id"), condition(e)};
      auto [it, fresh] = by_key.try_emplace(key, ComparedCase{&e, {}});
      if (fresh) order.push_back(key);
      it->second.entries.resize(subjects.size());
      it->second.entries[subject_of(e)] = &e;
    }
    ComparedOp compared{ops[op], {}, {}, {}};
    for (const Key& key : order) {
      const auto& c = by_key.at(key);
      if (std::ranges::count(c.entries, nullptr) + 2 <= std::ssize(c.entries))
        compared.cases.push_back(c);
    }
    if (compared.cases.empty()) continue;
    summarize(compared, subjects.size(), compared.cases);
    all.insert(all.end(), compared.cases.begin(), compared.cases.end());
    comparison.ops.push_back(std::move(compared));
  }
  if (comparison.ops.empty()) return {};
  comparison.all.op = "all ops";
  summarize(comparison.all, subjects.size(), all);
  label(subjects);
  return comparison;
}

}  // namespace harness::page
