// SPDX-License-Identifier: Apache-2.0
// The figures, as inline SVG. Coordinates are those of the view box; the style sheet enlarges text
// and marks where the figure is shown small.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/report/page_html.h"

namespace harness::page {

namespace {

// A logarithmic axis: whole decades onto a range of coordinates. What lies beyond its ends stands there.
struct Axis {
  int first, last;  // decades
  double from, to;  // coordinates
  double at(double value) const {
    return from + (std::log10(std::clamp(value, low(), high())) - first) / (last - first) * (to - from);
  }
  double low() const { return std::pow(10, first); }
  double high() const { return std::pow(10, last); }
};

// No machine computes or moves as much or as little; a row that says so is wrong, and would draw hundreds of lines.
constexpr double kLeast = -6, kMost = 9;  // decades

Axis axis_over(double low, double high, double from, double to) {
  const int first = static_cast<int>(std::clamp(std::floor(std::log10(low)), kLeast, kMost - 1));
  const int last = static_cast<int>(std::clamp(std::ceil(std::log10(high)), kLeast, kMost));
  return {first, std::max(first + 1, last), from, to};
}

constexpr double kLeft = 58, kRight = 628, kTop = 34, kBottom = 396;

std::string decade(int exponent) {
  if (exponent >= 0 && exponent <= 2) return fmt::format("{}", std::lround(std::pow(10, exponent)));
  if (exponent < 0 && exponent >= -3) return fmt::format("{:g}", std::pow(10, exponent));
  return fmt::format("10<tspan class=exp dy=-5>{}</tspan>", exponent);
}

std::string line(std::string_view style, double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>", style, x1, y1, x2,
                     y2);
}

std::string vertical_grid(const Axis& x, double top, double bottom) {
  std::string svg;
  for (int e = x.first; e <= x.last; ++e) {
    const double at = x.at(std::pow(10, e));
    svg += line("grid", at, top, at, bottom);
    svg += fmt::format("<text class=tick x={:.1f} y={:.1f} text-anchor=middle>{}</text>", at,
                       bottom + 20, decade(e));
  }
  return svg;
}

std::string horizontal_grid(const Axis& y) {
  std::string svg;
  for (int e = y.first; e <= y.last; ++e) {
    const double at = y.at(std::pow(10, e));
    svg += line("grid", kLeft, at, kRight, at);
    svg += fmt::format("<text class=tick x={} y={:.1f} text-anchor=end>{}</text>", kLeft - 8,
                       at + 4, decade(e));
  }
  return svg;
}

std::string mark(const Entry& entry, double x, double y) {
  return fmt::format(
      "<a href=\"#r{}\"><circle class=\"m {}{}{}\" cx={:.1f} cy={:.1f} r=4.5><title>{}</title>"
      "</circle></a>\n",
      entry.number, op_class(entry), entry.text("l2") == "warm" ? " warm" : "",
      entry.too_fast ? " fast" : "", x, y, escaped(mark_title(entry)));
}

std::string tooltip(const RoofLine& roof) {
  return fmt::format("<title>{}</title>",
                     escaped(fmt::format("{} {}: {}", roof.measured ? "measured" : "datasheet",
                                         roof_text(roof), roof.source)));
}

std::string style_of(const RoofLine& roof, const RoofLine* best) {
  if (!roof.measured) return "roof sheet";
  return &roof == best ? "roof" : "roof minor";
}

// Lines of roofs, and their labels: those are drawn last, over the marks.
struct Drawn {
  std::string lines, labels;
};

// The slope of a bandwidth roof up to where arithmetic takes over, and its label along it.
void draw_memory(const RoofLine& roof, const RoofLine* best, double ridge, const Axis& x,
                 const Axis& y, Drawn& drawn) {
  const double end = std::min({ridge, x.high(), y.high() / roof.value});
  const double start = std::max(x.low(), y.low() / roof.value);
  if (start >= end) return;
  const double x1 = x.at(start), y1 = y.at(start * roof.value);
  const double x2 = x.at(end), y2 = y.at(end * roof.value);
  drawn.lines +=
      fmt::format("<g>{}{}</g>", tooltip(roof), line(style_of(roof, best), x1, y1, x2, y2));
  if (roof.measured && &roof != best) return;
  const double angle = std::atan2(y2 - y1, x2 - x1) * 180 / M_PI;
  // Slopes lie close together: the cache's label above its line, the others below theirs, one
  // behind the other.
  const bool above = roof.kind == RoofLine::Kind::cache;
  const double share = above ? 0.5 : roof.measured ? 0.24 : 0.66;
  const double tx = x1 + share * (x2 - x1), ty = y1 + share * (y2 - y1);
  drawn.labels += fmt::format(
      "<text class=\"rl{}\" transform=\"translate({:.1f} {:.1f}) rotate({:.1f})\" "
      "text-anchor=middle dy={}>{} {}</text>",
      roof.measured ? "" : " sheet", tx, ty, angle, above ? -6 : 15, escaped(roof.label),
      roof_text(roof));
}

void draw_compute(const RoofLine& roof, const RoofLine* best, double ridge, const Axis& x,
                  const Axis& y, Drawn& drawn) {
  const double at = y.at(roof.value);
  drawn.lines += fmt::format("<g>{}{}</g>", tooltip(roof),
                             line(style_of(roof, best), x.at(ridge), at, kRight, at));
  if (roof.measured && &roof != best) return;
  drawn.labels += fmt::format("<text class=\"rl{}\" x={} y={:.1f} text-anchor=end>{} {}</text>",
                              roof.measured ? "" : " sheet", kRight - 4,
                              at + (roof.measured ? 15 : -6), escaped(roof.label), roof_text(roof));
}

Drawn draw_roofs(const std::vector<RoofLine>& roofs, const Axis& x, const Axis& y) {
  Drawn drawn;
  for (const RoofLine& roof : roofs) {
    const bool compute = roof.kind == RoofLine::Kind::compute;
    // Each set of roofs meets its own counterpart: measured with measured.
    const RoofLine* other =
        best_roof(roofs, compute ? RoofLine::Kind::memory : RoofLine::Kind::compute, roof.measured);
    const RoofLine* best = best_roof(roofs, roof.kind, roof.measured);
    if (compute)
      draw_compute(roof, best, other ? roof.value / other->value : x.low(), x, y, drawn);
    else
      draw_memory(roof, best, other ? other->value / roof.value : x.high(), x, y, drawn);
  }
  return drawn;
}

bool on_roofline(const Entry& e) {
  return e.value("intensity").value_or(0) > 0 && e.value("gflops").value_or(0) > 0;
}
bool bandwidth_only(const Entry& e) { return !on_roofline(e) && e.value("gbps").value_or(0) > 0; }

}  // namespace

std::string roofline_figure(const DeviceContent& device) {
  double x_low = 1e300, x_high = 0, y_low = 1e300, y_high = 0;
  for (const Entry* e : device.timed) {
    if (!on_roofline(*e)) continue;
    x_low = std::min(x_low, *e->value("intensity"));
    x_high = std::max(x_high, *e->value("intensity"));
    y_low = std::min(y_low, *e->value("gflops"));
    y_high = std::max(y_high, *e->value("gflops"));
  }
  if (x_high == 0) return {};
  for (const RoofLine& roof : device.roofs) {
    if (roof.kind == RoofLine::Kind::compute) {
      y_high = std::max(y_high, roof.value * 2);  // room for the label
      if (const RoofLine* memory = best_roof(device.roofs, RoofLine::Kind::memory, roof.measured))
        x_high = std::max(x_high, 2 * roof.value / memory->value);
    } else {
      y_high = std::max(y_high, roof.value * x_low);
    }
  }
  const Axis x = axis_over(x_low * 0.8, x_high, kLeft, kRight),
             y = axis_over(y_low * 0.8, y_high, kBottom, kTop);
  const Drawn roofs = draw_roofs(device.roofs, x, y);
  std::string svg = fmt::format(
      "<svg class=roofline viewBox=\"0 0 640 440\" role=img aria-label=\"Roofline of {}\">{}{}{}",
      escaped(device.name), vertical_grid(x, kTop, kBottom), horizontal_grid(y),
      roofs.lines);
  svg += fmt::format(
      "<text class=axis x={} y={} text-anchor=middle>FLOP per byte</text>"
      "<text class=axis x=4 y=16>GFLOP/s</text>\n",
      (kLeft + kRight) / 2, kBottom + 40);
  for (const Entry* e : device.timed)
    if (on_roofline(*e)) svg += mark(*e, x.at(*e->value("intensity")), y.at(*e->value("gflops")));
  return svg + roofs.labels + "</svg>\n";
}

std::string bandwidth_figure(const DeviceContent& device) {
  std::vector<std::string> lanes;
  double low = 1e300, high = 0;
  for (const Entry* e : device.timed) {
    if (!bandwidth_only(*e)) continue;
    if (std::ranges::find(lanes, e->text("op")) == lanes.end()) lanes.push_back(e->text("op"));
    low = std::min(low, *e->value("gbps"));
    high = std::max(high, *e->value("gbps"));
  }
  if (lanes.empty()) return {};
  for (const RoofLine& roof : device.roofs)
    if (roof.kind == RoofLine::Kind::memory) high = std::max(high, roof.value);
  // Where the figure is shown small, a letter of the style sheet's larger text takes 11.5.
  size_t longest = 0;
  for (const std::string& lane : lanes) longest = std::max(longest, lane.size());
  constexpr double kLane = 34, kCeiling = 10;
  const double labels = std::clamp(16 + 11.5 * static_cast<double>(longest), 112.0, 300.0);
  const double bottom = kCeiling + kLane * static_cast<double>(lanes.size());
  const Axis x = axis_over(low, high, labels, kRight);
  std::string svg = fmt::format(
      "<svg class=strip viewBox=\"0 0 640 {:.0f}\" role=img aria-label=\"Bandwidth by op of "
      "{}\">{}",
      bottom + 48, escaped(device.name), vertical_grid(x, kCeiling, bottom));
  for (const RoofLine& roof : device.roofs)
    if (roof.kind == RoofLine::Kind::memory)
      svg += fmt::format("<g>{}{}</g>", tooltip(roof),
                         line(style_of(roof, best_roof(device.roofs, roof.kind, roof.measured)),
                              x.at(roof.value), kCeiling, x.at(roof.value), bottom));
  svg += fmt::format("<text class=axis x={:.0f} y={:.0f} text-anchor=middle>GB/s</text>\n",
                     (labels + kRight) / 2, bottom + 40);
  for (size_t i = 0; i < lanes.size(); ++i) {
    const double middle = kCeiling + kLane * (static_cast<double>(i) + 0.5);
    svg += fmt::format("<text class=tick x={} y={:.1f} text-anchor=end>{}</text>", labels - 10,
                       middle + 4, escaped(lanes[i]));
    int n = 0;  // neighbours step aside, so that marks with the same value stay apart
    for (const Entry* e : device.timed)
      if (bandwidth_only(*e) && e->text("op") == lanes[i])
        svg += mark(*e, x.at(*e->value("gbps")), middle + (n++ % 5 - 2) * 4);
  }
  return svg + "</svg>\n";
}

std::string roof_list(const DeviceContent& device) {
  std::string html;
  for (const RoofLine& roof : device.roofs)
    html += fmt::format("<tr{}><td>{}<td>{}<td class=n>{}<td class=wrap>{}\n",
                        roof.measured ? "" : " class=sheet", escaped(roof.label),
                        roof.measured ? "measured" : "datasheet", roof_text(roof),
                        escaped(roof.source));
  if (!html.empty())
    html =
        "<div class=scroll><table class=roofs><thead><tr><th>roof<th>kind<th class=n>value<th>"
        "source<tbody>\n" +
        html + "</table></div>\n";
  for (const auto kind : {RoofLine::Kind::memory, RoofLine::Kind::compute})
    if (!best_roof(device.roofs, kind, true))
      html +=
          fmt::format("<p class=note>{} roof unknown: no measured row (op roof.*){}.</p>\n",
                      kind == RoofLine::Kind::memory ? "Memory" : "Arithmetic",
                      best_roof(device.roofs, kind, false) ? "; only the datasheet's value is shown"
                                                           : " and no line in devices.csv");
  return html;
}

}  // namespace harness::page
