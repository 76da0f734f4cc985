// SPDX-License-Identifier: Apache-2.0
// The tables of the HTML page. End tags that HTML lets one leave out are left out.
#include <fmt/format.h>

#include <algorithm>

#include "harness/report/page_html.h"

namespace harness::page {

namespace {

std::string badge(const std::string& status) {
  return fmt::format("<span class=\"badge {}\">{}</span>", escaped(status), escaped(status));
}

// A long id breaks behind its commas.
std::string breakable(const std::string& text) {
  std::string html;
  for (const char c : escaped(text)) {
    html += c;
    if (c == ',') html += "<wbr>";
  }
  return html;
}

// The case over its shape, as the first cell of a line.
std::string case_cell(const Entry& e) {
  std::string cell = fmt::format("<th scope=row><span class=id>{}</span>", breakable(short_id(e)));
  if (const std::string shape = e.text("shape"); !shape.empty())
    cell += fmt::format("<small>{}</small>", escaped(shape));
  return cell;
}

bool several(const std::vector<const Entry*>& entries, std::string_view column) {
  return std::ranges::any_of(
      entries, [&](const Entry* e) { return e->text(column) != entries[0]->text(column); });
}

std::string share_cell(const Entry& e) {
  if (!e.share) return "<td class=\"n dim\">unknown";
  return fmt::format("<td class=\"n share{}\" style=\"--p:{:.1f}%\">{}",
                     e.too_fast ? " fast" : "", std::min(e.share->percent, 100.0),
                     share_text(e));
}

std::string case_line(const Entry& e, bool device, bool impl, bool timed) {
  std::string html = fmt::format("<tr id=r{}>{}", e.number, case_cell(e));
  if (impl) html += fmt::format("<td>{}", escaped(e.text("impl")));
  if (device)
    html += fmt::format("{}{}{}", impl ? "<small>" : "<td>", escaped(e.text("device")),
                        impl ? "</small>" : "");
  html += fmt::format("<td>{}<td>{}", escaped(condition(e)), badge(e.text("status")));
  // Of the others it stands in the list of what did not pass.
  if (const std::string reason = e.text("reason"); e.passed() && !reason.empty())
    html += fmt::format("<small class=why>{}</small>", escaped(reason));
  html += fmt::format("<td class=n>{}", digits(e.value("used_share")));
  if (!timed) return html + "\n";
  html += fmt::format("<td class=\"n strong\">{}<td class=\"n dim\">",
                      digits(e.value("time_us_median")));
  if (const auto q1 = e.value("time_us_q1"), q3 = e.value("time_us_q3"); q1 && q3)
    html += digits(q1) + " – " + digits(q3);
  html += fmt::format("<td class=n>{}<td class=n>{}", digits(e.value("gbps")),
                      digits(e.value("gflops")));
  return html + (e.value("time_us_median") ? share_cell(e) : "<td>") + "\n";
}

std::string bad_line(const Entry& e) {
  std::string html =
      fmt::format("<li class={}>{} <code>{}</code> <span class=dim>{}{}{}</span>", op_class(e),
                  badge(e.text("status")), escaped(e.text("case_id")), escaped(e.text("impl")),
                  e.text("device").empty() ? "" : " on ", escaped(e.text("device")));
  for (const std::string& remark : remarks(e)) html += fmt::format("<p>{}", escaped(remark));
  if (const std::string repro = e.text("repro"); !repro.empty())
    html += fmt::format("<pre>{}</pre>", escaped(repro));
  return html + "\n";
}

std::string ratio_text(std::string_view element, std::optional<double> ratio) {
  if (!ratio) return fmt::format("<{} class=\"n dim\">–", element);
  return fmt::format("<{} class=\"n {}\">{:.2f}×", element, *ratio >= 1 ? "up" : "down", *ratio);
}

std::string heads(const Comparison& c) {
  std::string html;
  for (size_t i = 0; i < c.subjects.size(); ++i)
    html += fmt::format("<th class=n>{}<small>median µs{}</small>", escaped(c.subjects[i].label),
                        i ? ", speed-up" : "");
  return html;
}

// A subject's time, its speed-up and its share of the roof stand in one cell: a column for each
// would not fit beside each other.
std::string compared_line(const ComparedCase& c) {
  std::string html = fmt::format("<tr class={}>{}<small>{}</small>", op_class(*c.any),
                                 case_cell(*c.any), escaped(condition(*c.any)));
  for (size_t i = 0; i < c.entries.size(); ++i) {
    const Entry* e = c.entries[i];
    if (!e) {
      html += "<td class=\"n dim\">–";
      continue;
    }
    html += fmt::format("<td class=n>{}", digits(e->value("time_us_median")));
    if (i > 0) html += ratio_text("b", speed_up(c, i)) + "</b>";
    if (e->share)
      html += fmt::format("<small>{}{}</small>", share_text(*e), e->share->measured ? " of roof" : "");
  }
  return html + "\n";
}

std::string mean_line(const ComparedOp& op) {
  std::string html = fmt::format("<tr><th scope=row>{}", escaped(op.op));
  for (size_t i = 1; i < op.speed_up.size(); ++i)
    html += fmt::format("{}<small>{} case{}</small>", ratio_text("td", op.speed_up[i]), op.shared[i],
                        op.shared[i] == 1 ? "" : "s");
  return html + "\n";
}

}  // namespace

std::string bad_section(const Content& content) {
  std::string html;
  for (const Entry* e : content.bad()) html += bad_line(*e);
  if (html.empty()) return {};
  return "<section id=bad><h2>Not passed, or faster than its roof</h2>\n<ul class=bad>\n" + html +
         "</ul></section>\n";
}

std::string case_tables(const Content& content) {
  std::string html = "<section id=cases><h2>Cases by op</h2>\n";
  for (size_t op = 0; op < content.ops.size(); ++op) {
    std::vector<const Entry*> entries;
    for (const Entry& e : content.entries)
      if (e.op == static_cast<int>(op) && e.judged()) entries.push_back(&e);
    if (entries.empty()) continue;
    const bool device = several(entries, "device"), impl = several(entries, "impl");
    const bool timed = std::ranges::any_of(
        entries, [](const Entry* e) { return e->value("time_us_median").has_value(); });
    html += fmt::format(
        "<div class=\"op {}\"><h3><i></i>{} <small>{} row{}</small></h3><div class=scroll><table>"
        "<thead><tr><th>case{}<th>condition<th>verdict<th class=n>error / bound{}<tbody>\n",
        op_class(*entries[0]), escaped(content.ops[op]), entries.size(), entries.size() == 1 ? "" : "s", impl     ? "<th>implementation"
        : device ? "<th>device"
                 : "",
        timed ? "<th class=n>median µs<th class=n>quartiles<th class=n>GB/s<th class=n>GFLOP/s"
                "<th class=n>of roof"
              : "");
    for (const Entry* e : entries) html += case_line(*e, device, impl, timed);
    html += "</table></div></div>\n";
  }
  return html + "</section>\n";
}

std::string comparison_section(const Comparison& c) {
  std::string html = fmt::format(
      "<section id=compare><h2>Side by side</h2>\n<p>Speed-up over <b>{}</b>: its median time "
      "divided by the other's, case by case; above 1 the other is faster. An op's figure is the "
      "geometric mean over the cases that both have. Only passed rows count.</p>\n"
      "<div class=scroll><table class=\"means compared\"><thead><tr><th>op",
      escaped(c.subjects[0].label));
  for (size_t i = 1; i < c.subjects.size(); ++i)
    html += fmt::format("<th class=n>{}", escaped(c.subjects[i].label));
  html += "<tbody>\n";
  for (const ComparedOp& op : c.ops) html += mean_line(op);
  html += "<tfoot>" + mean_line(c.all) + "</table></div>\n";
  for (const ComparedOp& op : c.ops) {
    html += fmt::format(
        "<details class=\"op {}\" open><summary><h3><i></i>{} <small>{} "
        "case{}</small></h3></summary>"
        "<div class=scroll><table class=compared><thead><tr><th>case{}<tbody>\n",
        op_class(*op.cases[0].any), escaped(op.op), op.cases.size(),
        op.cases.size() == 1 ? "" : "s", heads(c));
    for (const ComparedCase& one : op.cases) html += compared_line(one);
    html += "</table></div></details>\n";
  }
  return html + "</section>\n";
}

std::string targets_section(const Content& content) {
  if (content.targets.empty()) return {};
  std::string html = fmt::format(
      "<section id=targets><h2>Targets</h2>\n<p class=note>{}. Median µs, cold L2.</p>\n<div class=scroll><table><thead>"
      "<tr><th>shape<th class=n>peer, same run<th class=n>best public<th class=n>must<th class=n>goal<th class=n>here"
      "<th>implementation<th>verdict<tbody>\n",
      summary_of(content.targets));
  for (const TargetResult& r : content.targets)
    html += fmt::format("<tr><th scope=row>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=\"n strong\">{}"
                        "<td>{}<td class=\"{}\">{}\n",
                        escaped(r.target.name), digits(r.peer_us), digits(r.target.best_peer_us), digits(r.target.must_us),
                        digits(r.target.goal_us), digits(r.us), escaped(r.impl),
                        !r.us          ? "dim"
                        : r.missed() ? "down"
                                     : "up",
                        r.verdict());
  return html + "</table></div></section>\n";
}

std::string skipped_section(const Content& content) {
  std::string html;
  const auto rows = content.not_run();
  for (const Entry* e : rows)
    html += fmt::format(
        "<tr class={}><th scope=row><span class=id>{}</span><td>{}<td>{}<td>{}<td class=wrap>{}\n",
        op_class(*e), breakable(e->text("case_id")), badge(e->text("status")),
        escaped(e->text("impl")), escaped(e->text("device")), escaped(e->text("reason")));
  if (rows.empty()) return {};
  return fmt::format(
      "<section id=skipped><h2>Not run <small>{} row{}</small></h2>\n<div "
      "class=scroll><table><thead>"
      "<tr><th>case<th>verdict<th>implementation<th>device<th>reason<tbody>\n{}</table></div></section>\n",
      rows.size(), rows.size() == 1 ? "" : "s", html);
}

std::string provenance_section(const Content& content) {
  std::string html =
      "<section id=provenance><h2>Where the rows are from</h2>\n<div "
      "class=scroll><table><thead><tr>"
      "<th>run<th>tool<th>revision<th>device<th>driver<th>built with<th class=n>clock MHz<th "
      "class=n>"
      "throttled<th class=n>rows<th>seed<th>time (UTC)<tbody>\n";
  for (const Provenance& p : content.provenance) {
    html += fmt::format(
        "<tr><th scope=row><span class=id>{}</span><td>{}<td><code>{}</code><td>{}{}{}<td>{}<td>{}"
        "<td class=n>{}<td class=n>{}<td class=n>{}<td>{}<td>{}\n",
        escaped(p.run_id), escaped(p.tool), escaped(p.git_sha.substr(0, 18)), escaped(p.device),
        p.arch.empty() ? "" : ", ", escaped(p.arch), escaped(p.driver), escaped(p.toolkit),
        clock_text(p), p.throttled, p.rows, escaped(p.seeds), escaped(time_text(p)));
  }
  html += "</table></div>\n<p class=note>Files: ";
  for (size_t i = 0; i < content.files.size(); ++i)
    html += fmt::format("{}<code>{}</code>", i ? ", " : "", escaped(content.files[i]));
  return html + "</p></section>\n";
}

}  // namespace harness::page
