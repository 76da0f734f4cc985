// SPDX-License-Identifier: Apache-2.0
// The HTML page as a whole.
#include "harness/report/page_html.h"

#include <fmt/format.h>

#include <algorithm>

namespace harness::page {

namespace {

// Without any script: a box that is not ticked hides its op by the style sheet alone.
std::string filter(const Content& content) {
  if (content.ops.size() < 2) return {};
  std::string boxes, rules;
  for (size_t i = 0; i < content.ops.size(); ++i) {
    const auto n = std::ranges::count(content.entries, static_cast<int>(i), &Entry::op);
    boxes += fmt::format(
        "<label class=o{}><input type=checkbox id=f{} checked><i></i>{} "
        "<small>{}</small></label>\n",
        i, i, escaped(content.ops[i]), n);
    rules +=
        fmt::format("body:has(#f{}:not(:checked)) :is(.m,tr,li,.op).o{}{{display:none}}", i, i);
  }
  return fmt::format(
      "<style>{}</style>\n<form "
      "class=filter><fieldset><legend>Ops</legend>\n{}</fieldset></form>\n",
      rules, boxes);
}

std::string header(const Content& content) {
  std::string devices;
  for (const DeviceContent& d : content.devices)
    devices += (devices.empty() ? "" : ", ") + escaped(d.name);
  const bool good = content.judged() > 0 && content.judged() == content.passed();
  std::string html = fmt::format(
      "<header><h1>Kernel report</h1>\n<p class=\"verdict {}\">{}</p>\n"
      "<p class=lede>{} on {}</p>\n<ul class=tiles>\n",
      good ? "good" : "poor", content.headline(), size_text(content),
      devices.empty() ? "no device" : devices);
  for (const auto& [status, n] : content.statuses)
    html += fmt::format("<li class=\"{}\"><b>{}</b> {}\n", escaped(status), n, escaped(status));
  const auto fast = std::ranges::count_if(content.entries, &Entry::too_fast);
  if (fast) html += fmt::format("<li class=fast><b>{}</b> faster than its roof\n", fast);
  return html + "</ul></header>\n";
}

std::string device_section(const DeviceContent& device) {
  if (device.timed.empty() && device.roof_rows == 0)
    return fmt::format(
        "<section class=device><h2>{}</h2><p class=note>No timed rows of a kernel.</p></section>\n",
        escaped(device.name));
  std::string html =
      fmt::format("<section class=device><h2>{} <small>{}</small></h2>\n<div class=figures>\n",
                  escaped(device.name), escaped(device.arch));
  if (const std::string figure = roofline_figure(device); !figure.empty())
    html += "<figure>" + figure +
            "<figcaption>Roofline. A mark is a case, filled with a cold cache, hollow with a warm "
            "one. Solid line: measured; dashed: datasheet.</figcaption></figure>\n";
  if (const std::string figure = bandwidth_figure(device); !figure.empty())
    html += "<figure>" + figure +
            "<figcaption>Bandwidth of the cases that do no arithmetic.</figcaption></figure>\n";
  return html + "</div>\n" + roof_list(device) + "</section>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
          out += "\xEF\xBF\xBD";
        else
          out += c;
    }
  }
  return out;
}

std::string op_class(const Entry& entry) {
  return entry.op < 0 ? "roof-row" : fmt::format("o{}", entry.op);
}

std::string mark_title(const Entry& e) {
  std::string title = fmt::format("{} [{}{}{}]: {} µs", e.text("case_id"), e.text("impl"),
                                  condition(e).empty() ? "" : ", ", condition(e),
                                  digits(e.value("time_us_median")));
  if (const auto gbps = e.value("gbps")) title += fmt::format(", {} GB/s", digits(gbps));
  if (const auto gflops = e.value("gflops"); gflops.value_or(0) > 0)
    title += fmt::format(", {} GFLOP/s", digits(gflops));
  title += ", of roof: " + share_text(e);
  if (!e.passed()) title += ", " + e.text("status");
  return title;
}

}  // namespace harness::page

namespace harness {

std::string html_page(const PageInput& input) {
  const page::Content content = page::make_content(input);
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport "
      "content=\"width=device-width,initial-scale=1\">\n<meta name=color-scheme content=\"light "
      "dark\">\n<title>Kernel report: {}</title>\n<style>{}</style>\n<body>\n<main>\n",
      content.headline(), page::kStyle);
  html += page::header(content) + page::bad_section(content) +
          page::targets_section(content) + page::filter(content);
  for (const page::DeviceContent& device : content.devices) html += page::device_section(device);
  if (content.comparison) html += page::comparison_section(*content.comparison);
  html += page::case_tables(content) + page::skipped_section(content) +
          page::provenance_section(content);
  return html + fmt::format("</main>\n<script>{}</script>\n", page::kScript);
}

}  // namespace harness
