// SPDX-License-Identifier: Apache-2.0
#include "harness/report/page_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "harness/report/read_rows.h"

namespace harness::page {

namespace {

bool is_oracle(const Row& row) { return row.text("impl").starts_with("oracle"); }

int index_in(std::vector<std::string>& names, const std::string& name) {
  const auto it = std::ranges::find(names, name);
  if (it != names.end()) return static_cast<int>(it - names.begin());
  names.push_back(name);
  return static_cast<int>(names.size()) - 1;
}

DeviceContent& device_of(const Row& row, Content& content) {
  const std::string name = row.text("device");
  for (DeviceContent& device : content.devices)
    if (device.name == name) return device;
  content.devices.push_back({name, row.text("backend"), row.text("arch"), {}, 0, {}});
  return content.devices.back();
}

bool above_roof(const Entry& entry) { return entry.share && entry.share->percent > 100; }

// What is neither pass nor wrong is not called FAIL.
constexpr auto kWorstFirst = std::to_array<std::string_view>(
    {"fail", "error", "timeout", "crash", "impossible", "inconclusive"});

auto severity(const Entry* e) {
  return std::ranges::find(kWorstFirst, e->text("status")) - kWorstFirst.begin();
}

// Entries of both kinds that are `wanted`.
template <class Wanted>
std::vector<const Entry*> chosen(const Content& content, Wanted wanted) {
  std::vector<const Entry*> some;
  for (const auto* entries : {&content.entries, &content.roofs})
    for (const Entry& e : *entries)
      if (wanted(e)) some.push_back(&e);
  return some;
}

void extend(std::string& first, std::string& last, const std::string& value) {
  if (value.empty()) return;
  if (first.empty() || value < first) first = value;
  if (last.empty() || value > last) last = value;
}

void add_provenance(const Row& row, std::vector<Provenance>& all) {
  auto it = std::ranges::find_if(all, [&](const Provenance& p) {
    return p.run_id == row.text("run_id") && p.tool == row.text("tool") &&
           p.git_sha == row.text("git_sha") && p.device == row.text("device");
  });
  if (it == all.end()) {
    Provenance fresh;
    fresh.run_id = row.text("run_id"), fresh.tool = row.text("tool");
    fresh.git_sha = row.text("git_sha"), fresh.device = row.text("device");
    fresh.arch = row.text("arch"), fresh.driver = row.text("driver");
    fresh.toolkit = row.text("toolkit");
    it = all.insert(all.end(), std::move(fresh));
  }
  Provenance& p = *it;
  ++p.rows;
  extend(p.first_utc, p.last_utc, row.text("utc"));
  const std::string throttled = row.text("throttled");
  if (!throttled.empty() && throttled != "0" && throttled != "none") ++p.throttled;
  if (const auto mhz = number_in(row, "clock_mhz")) {
    p.least_mhz = std::min(*mhz, p.least_mhz.value_or(*mhz));
    p.most_mhz = std::max(*mhz, p.most_mhz.value_or(*mhz));
  }
  const std::string seed = row.text("seed");  // a roof and a dump have none
  if (!seed.empty() && p.seeds != seed) p.seeds = p.seeds.empty() ? seed : "several";
}

}  // namespace

std::optional<double> Entry::value(std::string_view column) const {
  return number_in(*row, column);
}
bool Entry::judged() const {
  const std::string status = text("status");
  return status != "skip" && status != "unsupported";
}

int Content::judged() const {
  return static_cast<int>(chosen(*this, std::mem_fn(&Entry::judged)).size());
}
int Content::passed() const {
  return static_cast<int>(chosen(*this, std::mem_fn(&Entry::passed)).size());
}
std::vector<const Entry*> Content::bad() const {
  auto some = chosen(*this, [](const Entry& e) { return e.judged() && (!e.passed() || e.too_fast); });
  std::ranges::stable_sort(some, {}, severity);
  return some;
}
std::vector<const Entry*> Content::not_run() const {
  return chosen(*this, [](const Entry& e) { return !e.judged(); });
}
std::string Content::headline() const {
  if (judged() == 0) return "Nothing was judged";
  const int failed = judged() - passed();
  if (failed == 0) return fmt::format("PASS {} of {}", passed(), judged());
  std::string worst = bad().front()->text("status");
  std::ranges::transform(worst, worst.begin(), [](char c) { return std::toupper(c); });
  return fmt::format("{}: {} of {} not passed", worst, failed, judged());
}

Content make_content(const PageInput& input) {
  Content content;
  content.files = input.files;
  content.targets = input.targets;
  for (const Row& row : input.rows) {
    add_provenance(row, content.provenance);
    ++content.statuses[row.text("status")];
    if (is_roof(row)) {
      ++device_of(row, content).roof_rows;
      content.roofs.push_back({&row, 0, -1, {}});
      continue;
    }
    if (!row.text("device").empty()) device_of(row, content);
    content.entries.push_back({&row,
                               static_cast<int>(content.entries.size()) + 1,
                               index_in(content.ops, row.text("op")),
                               {}});
  }
  for (const Row& row : input.peers)
    content.peers.push_back({&row, 0, index_in(content.ops, row.text("op")), {}, false, true});
  for (DeviceContent& device : content.devices) {
    device.roofs = roofs_of(device.name, input.rows, input.datasheets);
    for (Entry& entry : content.entries) {
      if (entry.text("device") != device.name || is_oracle(*entry.row)) continue;
      entry.share = share_of_roof(*entry.row, device.roofs);
      entry.too_fast = above_roof(entry) || entry.text("status") == "impossible";
      if (entry.value("time_us_median")) device.timed.push_back(&entry);
    }
    for (Entry& peer : content.peers) peer.share = share_of_roof(*peer.row, device.roofs);
  }
  std::vector<const Entry*> compared;
  for (const auto* entries : {&content.entries, &content.peers})
    for (const Entry& entry : *entries) compared.push_back(&entry);
  content.comparison = compare_subjects(compared, content.ops);
  return content;
}

std::vector<std::string> remarks(const Entry& entry) {
  std::vector<std::string> lines;
  const std::string reason = entry.text("reason"), first_bad = entry.text("first_bad");
  if (above_roof(entry))
    lines.push_back(fmt::format("faster than its roof: {} % of its {} roof",
                                digits(entry.share->percent),
                                entry.share->measured ? "measured" : "datasheet"));
  else if (entry.too_fast && reason.empty())
    lines.emplace_back("faster than its run thinks possible");
  if (!reason.empty()) lines.push_back(reason);
  if (!first_bad.empty() && first_bad != reason) lines.push_back(first_bad);
  return lines;
}

std::string size_text(const Content& content) {
  const auto counted = [](size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  std::string text = counted(content.entries.size(), "row") + " of " + counted(content.ops.size(), "op");
  if (!content.roofs.empty()) text += " and " + counted(content.roofs.size(), "roof");
  return text;
}

std::string short_id(const Entry& entry) {
  const std::string id = entry.text("case_id"), op = entry.text("op") + "/";
  return id.starts_with(op) ? id.substr(op.size()) : id;
}

std::string condition(const Entry& entry) {
  std::string text;
  for (const auto column : {"l2", "launch", "dtype", "fp8_flavour"})
    if (const std::string cell = entry.text(column); !cell.empty())
      text += (text.empty() ? "" : " ") + cell;
  return text;
}

std::string digits(std::optional<double> value) {
  if (!value) return {};
  const double size = std::abs(*value);
  if (size >= 1000 || size == 0) return fmt::format("{:.0f}", *value);
  if (size >= 100) return fmt::format("{:.1f}", *value);
  if (size >= 1) return fmt::format("{:.2f}", *value);
  return fmt::format("{:.3g}", *value);
}

std::string share_text(const Entry& entry) {
  if (!entry.share) return "unknown";
  const double percent = entry.share->percent;
  return (percent < 10 ? fmt::format("{:.2g} %", percent) : fmt::format("{:.1f} %", percent)) +
         (entry.share->measured ? "" : " of datasheet");
}

std::string roof_text(const RoofLine& roof) {
  if (roof.kind != RoofLine::Kind::compute) return digits(roof.value) + " GB/s";
  return roof.value >= 1000 ? digits(roof.value / 1000) + " TFLOP/s"
                            : digits(roof.value) + " GFLOP/s";
}

std::string clock_text(const Provenance& p) {
  if (!p.least_mhz) return "not read";
  if (*p.least_mhz == *p.most_mhz) return digits(p.least_mhz);
  return digits(p.least_mhz) + " – " + digits(p.most_mhz);
}
std::string time_text(const Provenance& p) {
  return p.first_utc == p.last_utc ? p.first_utc : p.first_utc + " to " + p.last_utc;
}

}  // namespace harness::page
