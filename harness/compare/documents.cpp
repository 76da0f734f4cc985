// SPDX-License-Identifier: Apache-2.0
#include "harness/compare/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/report/markdown_text.h"

namespace harness {

namespace {

using markdown::cell;
using markdown::code;

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", *share) : "unknown";
}

std::string joined(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string impl_of(const Compared& c) {
  return c.a.impl == c.b.impl ? c.b.impl : c.a.impl + " -> " + c.b.impl;
}

std::string interval_of(const Ratio& r) {
  return r.lo > 0 ? fmt::format("[{:.3f}, {:.3f}]", r.lo, r.hi) : "[no interval]";
}

std::string line_of(const Compared& c) {
  std::string line = fmt::format("{:<8}{:.3f} {:<16} {:.2f} -> {:.2f} us  {} [{}]",
                                 name_of(c.ratio.change), c.ratio.ratio, interval_of(c.ratio),
                                 c.side_a.median_us, c.side_b.median_us, c.b.place(), impl_of(c));
  if (c.ratio.lo > 0) line += fmt::format("; sees {:.2f} %", c.ratio.visible_pct);
  if (c.a.roof_pct || c.b.roof_pct)
    line += fmt::format("; of the roof {} -> {} %", percent(c.a.roof_pct), percent(c.b.roof_pct));
  if (c.peer)
    line += fmt::format("; {:.3f} of {} ({:.2f} us)", c.side_b.median_us / c.peer->us, c.peer->op,
                        c.peer->us);
  if (!c.ratio.reason.empty()) line += "; " + c.ratio.reason;
  return line + "\n";
}

std::string why(const Timing& t) {
  return t.reason.empty() ? t.status : t.status + ": " + t.reason;
}

int count_only(const Comparison& c, std::string_view side) {
  return static_cast<int>(
      std::ranges::count_if(c.only, [&](const Left& left) { return left.side == side; }));
}

std::string number(double x) { return to_text(Cell(x)); }
std::string number(const std::optional<double>& x) { return x ? number(*x) : ""; }

template <size_t N>
std::string csv_record(const std::array<std::string, N>& cells) {
  std::string line;
  for (size_t i = 0; i < N; ++i) line += (i ? "," : "") + csv_cell(cells[i]);
  return line + "\n";
}

constexpr size_t kCsvColumns = 27;

std::array<std::string, kCsvColumns> csv_left(const Left& left, const std::string& word) {
  const Timing& t = left.timing;
  std::array<std::string, kCsvColumns> cells{word,    t.op,          t.case_id, t.shape,
                                             t.dtype, t.fp8_flavour, t.l2,      t.launch};
  const bool a = left.side == "A";
  cells[a ? 8 : 9] = t.impl;
  cells[a ? 10 : 11] = t.device;
  cells[a ? 12 : 13] = t.samples ? std::to_string(t.samples) : "";
  cells[a ? 14 : 15] = number(t.median);
  cells[26] = word == "NOT_COMPARED" ? left.side + ": " + why(t) : "";
  return cells;
}

}  // namespace

std::string counted(size_t n, const std::string& noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string headline(const std::string& side, const Results& results) {
  std::string text = fmt::format("{} {}: {}", side, results.file,
                                 results.devices.empty() ? "no device" : joined(results.devices));
  if (!results.drivers.empty()) text += ", driver " + joined(results.drivers);
  if (!results.revisions.empty()) text += ", revision " + joined(results.revisions);
  text += ", " + counted(results.timed.size(), "timed row");
  if (results.judged_only) text += fmt::format(" ({} without a time)", results.judged_only);
  if (results.timer_step_us) text += fmt::format(", timer step {:.3g} us", *results.timer_step_us);
  return text;
}

std::string comparison_lines(const Comparison& comparison) {
  std::string text;
  for (const Compared& c : comparison.pairs) text += line_of(c);
  for (const Left& left : comparison.only)
    text += fmt::format("only in {}  {} [{}]\n", left.side, left.timing.place(), left.timing.impl);
  for (const Left& left : comparison.failures)
    text += fmt::format("not compared, {}  {} [{}]: {}\n", left.side, left.timing.place(),
                        left.timing.impl, why(left.timing));
  return text;
}

std::string comparison_counts(const Comparison& comparison) {
  std::string text;
  for (const Change change : {Change::slower, Change::unclear, Change::faster, Change::same})
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(change), comparison.count(change));
  const int ratios = comparison.count(Change::ratio);
  const size_t roofs = comparison.pairs.size() - comparison.judged();
  if (static_cast<size_t>(ratios) > roofs)  // beside a peer
    text = fmt::format("RATIO {}", ratios);
  else if (roofs)
    text += fmt::format(", {} not judged", counted(roofs, "roof"));
  return text + fmt::format("; {} only in A, {} only in B, {} not compared",
                            count_only(comparison, "A"), count_only(comparison, "B"),
                            comparison.failures.size());
}

std::string comparison_csv(const Comparison& comparison) {
  std::string text =
      "verdict,op,case_id,shape,dtype,fp8_flavour,l2,launch,impl_a,impl_b,device_a,device_b,"
      "samples_a,samples_b,time_us_a,time_us_b,ratio,ratio_lo,ratio_hi,visible_pct,regression,"
      "roof_pct_a,roof_pct_b,peer,peer_us,peer_ratio,reason\n";
  for (const Compared& c : comparison.pairs) {
    const bool sure = c.ratio.lo > 0;
    const bool peer_side = c.ratio.change == Change::ratio && c.peer;
    text += csv_record<kCsvColumns>({std::string(name_of(c.ratio.change)),
                                     c.b.op,
                                     c.b.case_id,
                                     c.b.shape,
                                     c.b.dtype,
                                     c.b.fp8_flavour,
                                     c.b.l2,
                                     c.b.launch,
                                     c.a.impl,
                                     c.b.impl,
                                     peer_side ? "" : c.a.device,
                                     c.b.device,
                                     peer_side ? "" : std::to_string(c.side_a.samples),
                                     std::to_string(c.side_b.samples),
                                     number(c.side_a.median_us),
                                     number(c.side_b.median_us),
                                     number(c.ratio.ratio),
                                     sure ? number(c.ratio.lo) : "",
                                     sure ? number(c.ratio.hi) : "",
                                     sure ? number(c.ratio.visible_pct) : "",
                                     c.regression ? "1" : "0",
                                     number(c.a.roof_pct),
                                     number(c.b.roof_pct),
                                     c.peer ? c.peer->op + " " + c.peer->shape : "",
                                     c.peer ? number(c.peer->us) : "",
                                     c.peer ? number(c.side_b.median_us / c.peer->us) : "",
                                     c.ratio.reason});
  }
  for (const Left& left : comparison.only)
    text += csv_record(csv_left(left, "ONLY_IN_" + left.side));
  for (const Left& left : comparison.failures) text += csv_record(csv_left(left, "NOT_COMPARED"));
  return text;
}

std::string comparison_markdown(const Comparison& comparison, const std::vector<std::string>& heads,
                                const std::string& verdict) {
  std::string text = fmt::format("## {}\n\n", verdict);
  for (const auto& head : heads) text += fmt::format("- {}\n", cell(head));
  text += fmt::format("\n{}\n", comparison_counts(comparison));
  const bool roofs = std::ranges::any_of(
      comparison.pairs, [](const Compared& c) { return c.a.roof_pct || c.b.roof_pct; });
  const bool peers =
      std::ranges::any_of(comparison.pairs, [](const Compared& c) { return c.peer.has_value(); });
  if (!comparison.pairs.empty()) {
    text += "\n| verdict | B / A | interval | sees % | A us | B us |";
    if (roofs) text += " A % of roof | B % of roof |";
    if (peers) text += " peer us | B / peer |";
    text += " case | impl | remark |\n|---|--:|---|--:|--:|--:|";
    text += std::string(roofs ? "--:|--:|" : "") + (peers ? "--:|--:|" : "") + "---|---|---|\n";
  }
  for (const Compared& c : comparison.pairs) {
    const bool sure = c.ratio.lo > 0;
    text += fmt::format("| {0}{1}{0} | {2:.3f} | {3} | {4} | {5:.2f} | {6:.2f} |",
                        c.regression ? "**" : "", name_of(c.ratio.change), c.ratio.ratio,
                        sure ? interval_of(c.ratio) : "",
                        sure ? fmt::format("{:.2f}", c.ratio.visible_pct) : "", c.side_a.median_us,
                        c.side_b.median_us);
    if (roofs) text += fmt::format(" {} | {} |", percent(c.a.roof_pct), percent(c.b.roof_pct));
    if (peers)
      text += c.peer
                  ? fmt::format(" {:.2f} | {:.3f} |", c.peer->us, c.side_b.median_us / c.peer->us)
                  : std::string("  |  |");
    text += fmt::format(" {} | {} | {} |\n", code(c.b.place(), true), cell(impl_of(c)),
                        cell(c.ratio.reason));
  }
  if (!comparison.only.empty()) text += "\n";
  for (const Left& left : comparison.only)
    text += fmt::format("- only in {}: {} [{}]\n", left.side, code(left.timing.place()),
                        cell(left.timing.impl));
  if (!comparison.failures.empty()) text += "\n";
  for (const Left& left : comparison.failures)
    text += fmt::format("- not compared, {}: {} [{}]: {}\n", left.side, code(left.timing.place()),
                        cell(left.timing.impl), cell(why(left.timing)));
  return text;
}

std::vector<Row> comparison_rows(const Comparison& comparison) {
  std::vector<Row> rows;
  const auto add = [&](const Timing& t, const std::string& impl, const std::string& status,
                       const std::string& reason) {
    Row& row = rows.emplace_back();
    row.set("op", t.op);
    row.set("impl", impl);
    row.set("case_id", t.place());
    row.set("backend", std::string("compare"));
    row.set("status", status);
    row.set("reason", reason);
  };
  for (const Compared& c : comparison.pairs)
    add(c.b, impl_of(c),
        c.b.roof()                          ? "skip"
        : c.regression                      ? "fail"
        : c.ratio.change == Change::unclear ? "skip"  // noise fails no merge: exit 3 tells it
                                            : "pass",
        fmt::format("{} {:.3f} {}{}{}", name_of(c.ratio.change), c.ratio.ratio,
                    interval_of(c.ratio), c.ratio.reason.empty() ? "" : ", ", c.ratio.reason));
  for (const Left& left : comparison.only)
    add(left.timing, left.timing.impl, "skip", "only in " + left.side);
  for (const Left& left : comparison.failures)
    add(left.timing, left.timing.impl, "skip",
        "not compared, " + left.side + ": " + why(left.timing));
  return rows;
}

}  // namespace harness
