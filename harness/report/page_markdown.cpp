// SPDX-License-Identifier: Apache-2.0
// The report as Markdown, for a pull request: the same content, with tables for the figures.
#include <fmt/format.h>

#include <algorithm>

#include "harness/report/markdown_text.h"
#include "harness/report/page_content.h"

namespace harness::page {

namespace {

using markdown::cell;
using markdown::code;

std::string bad(const Content& content) {
  std::string text;
  for (const Entry* e : content.bad()) {
    text += fmt::format("- **{}** {} [{} on {}]\n", cell(e->text("status")),
                        code(e->text("case_id")), cell(e->text("impl")), cell(e->text("device")));
    for (const std::string& remark : remarks(*e)) text += fmt::format("  - {}\n", cell(remark));
    if (const std::string t = e->text("repro"); !t.empty())
      text += fmt::format("  - {}\n", code(t));
  }
  return text.empty() ? text : "## Not passed, or faster than its roof\n\n" + text + "\n";
}

std::string roofs(const Content& content) {
  std::string text =
      "## Roofs\n\n| device | roof | kind | value | source |\n| --- | --- | --- | ---: | --- |\n";
  for (const DeviceContent& d : content.devices) {
    for (const RoofLine& r : d.roofs)
      text += fmt::format("| {} | {} | {} | {} | {} |\n", cell(d.name), cell(r.label),
                          r.measured ? "measured" : "datasheet", roof_text(r), cell(r.source));
    if (d.roofs.empty()) text += fmt::format("| {} | roof unknown | | | |\n", cell(d.name));
  }
  return text + "\n";
}

std::string ratio(std::optional<double> r) { return r ? fmt::format("{:.2f}×", *r) : "–"; }

std::string side_by_side(const Comparison& c) {
  std::string head = "| op |", rule = "| --- |", cases_head = "| case | condition |",
              cases_rule = "| --- | --- |";
  for (size_t i = 1; i < c.subjects.size(); ++i) {
    head += fmt::format(" cases | {} |", cell(c.subjects[i].label));
    rule += " ---: | ---: |";
  }
  for (const Subject& s : c.subjects) {
    cases_head += fmt::format(" {} µs | of roof |", cell(s.label));
    cases_rule += " ---: | ---: |";
  }
  for (size_t i = 1; i < c.subjects.size(); ++i) {
    cases_head += fmt::format(" {} speed-up |", cell(c.subjects[i].label));
    cases_rule += " ---: |";
  }
  std::string means, cases;
  const auto add_mean = [&](const ComparedOp& op) {
    means += fmt::format("| {} |", cell(op.op));
    for (size_t i = 1; i < c.subjects.size(); ++i)
      means += fmt::format(" {} | {} |", op.shared[i], ratio(op.speed_up[i]));
    means += "\n";
  };
  for (const ComparedOp& op : c.ops) {
    add_mean(op);
    for (const ComparedCase& one : op.cases) {
      cases +=
          fmt::format("| {} | {} |", code(one.any->text("case_id"), true), cell(condition(*one.any)));
      for (const Entry* e : one.entries)
        cases += e ? fmt::format(" {} | {} |", digits(e->value("time_us_median")), share_text(*e))
                   : " – | – |";
      for (size_t i = 1; i < c.subjects.size(); ++i)
        cases += fmt::format(" {} |", ratio(speed_up(one, i)));
      cases += "\n";
    }
  }
  add_mean(c.all);
  return fmt::format(
      "## Side by side\n\nSpeed-up over {}: its median time divided by the other's; above 1 the "
      "other is faster. An op's figure is the geometric mean over the cases that both have.\n\n"
      "{}\n{}\n{}\n<details><summary>Case by case</summary>\n\n{}\n{}\n{}\n</details>\n\n",
      cell(c.subjects[0].label), head, rule, means, cases_head, cases_rule, cases);
}

std::string cases(const Content& content) {
  std::string text = "## Cases by op\n\n";
  for (size_t op = 0; op < content.ops.size(); ++op) {
    std::string lines;
    int n = 0;
    for (const Entry& e : content.entries) {
      if (e.op != static_cast<int>(op) || !e.judged()) continue;
      ++n;
      std::string verdict = e.text("status");
      if (const std::string reason = e.text("reason"); e.passed() && !reason.empty())
        verdict += ": " + reason;
      lines += fmt::format("| {} | {} | {} on {} | {} | {} | {} |", code(short_id(e), true),
                           cell(e.text("shape")), cell(e.text("impl")), cell(e.text("device")),
                           cell(condition(e)), cell(verdict), digits(e.value("used_share")));
      const auto q1 = e.value("time_us_q1"), q3 = e.value("time_us_q3");
      lines +=
          fmt::format(" {} | {} | {} | {} | {} |\n", digits(e.value("time_us_median")),
                      q1 && q3 ? digits(q1) + " – " + digits(q3) : "", digits(e.value("gbps")),
                      digits(e.value("gflops")), e.value("time_us_median") ? share_text(e) : "");
    }
    if (n == 0) continue;
    text += fmt::format(
        "<details><summary>{}: {} row{}</summary>\n\n| case | shape | who | condition | verdict | "
        "error / bound | median µs | quartiles | GB/s | GFLOP/s | of roof |\n| --- | --- | --- | "
        "--- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n{}\n</details>\n\n",
        cell(content.ops[op]), n, n == 1 ? "" : "s", lines);
  }
  return text;
}

std::string targets(const Content& content) {
  if (content.targets.empty()) return {};
  std::string text = fmt::format(
      "## Targets\n\n{}. Median µs, cold L2.\n\n| shape | peer, same run | best public | must | goal | here | | |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |\n",
      summary_of(content.targets));
  for (const TargetResult& r : content.targets)
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(r.target.name), digits(r.peer_us),
                        digits(r.target.best_peer_us), digits(r.target.must_us), digits(r.target.goal_us), digits(r.us),
                        cell(r.impl), r.missed() ? fmt::format("**{}**", r.verdict()) : r.verdict());
  return text + "\n";
}

std::string skipped(const Content& content) {
  std::string lines;
  for (const Entry* e : content.not_run())
    lines += fmt::format("- {} {} [{}{}{}] {}\n", cell(e->text("status")), code(e->text("case_id")),
                         cell(e->text("impl")), e->text("impl").empty() ? "" : " on ",
                         cell(e->text("device")), cell(e->text("reason")));
  return lines.empty() ? lines : "## Not run\n\n" + lines + "\n";
}

std::string provenance(const Content& content) {
  std::string text =
      "## Where the rows are from\n\n| run | tool | revision | device | driver | built with | "
      "clock "
      "MHz | throttled | rows | seed | time (UTC) |\n| --- | --- | --- | --- | --- | --- | ---: | "
      "---: | ---: | --- | --- |\n";
  for (const Provenance& p : content.provenance)
    text += fmt::format("| {} | {} | {} | {} {} | {} | {} | {} | {} | {} | {} | {} |\n",
                        cell(p.run_id), cell(p.tool), code(p.git_sha, true), cell(p.device), cell(p.arch),
                        cell(p.driver), cell(p.toolkit), clock_text(p), p.throttled, p.rows,
                        cell(p.seeds), cell(time_text(p)));
  return text;
}

}  // namespace

}  // namespace harness::page

namespace harness {

std::string markdown_page(const PageInput& input) {
  using namespace page;
  const Content content = make_content(input);
  std::string counts;
  for (const auto& [status, n] : content.statuses)
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", n, cell(status));
  std::string text =
      fmt::format("# Kernel report: {}\n\n{}: {}.\n\n", content.headline(), size_text(content),
                  counts.empty() ? "none" : counts);
  text += bad(content) + targets(content) + roofs(content);
  if (content.comparison) text += side_by_side(*content.comparison);
  return text + cases(content) + skipped(content) + provenance(content);
}

}  // namespace harness
