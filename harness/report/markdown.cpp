// SPDX-License-Identifier: Apache-2.0
// The Markdown summary: failures first, then a line per op, what was skipped and why, the times
// that were measured, and what the cases say about their own input.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/report/output.h"
#include "harness/report/read_rows.h"
#include "harness/report/sink.h"

namespace harness {

namespace {

std::string cell(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// "portable on NVIDIA H200"; a dumped result is on no device.
std::string who(const Row& row, std::string_view machine) {
  const std::string on = row.text(machine);
  return on.empty() ? row.text("impl") : row.text("impl") + " on " + on;
}

bool is_bad(const Row& row) {
  const std::string s = row.text("status");
  return s != "pass" && s != "skip" && s != "unsupported";
}

// Of this run or read back from an earlier one (--resume), where cells are text.
double number(const Row& row, std::string_view column) {
  return number_in(row, column).value_or(0);
}

std::string failures(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    if (!is_bad(row)) continue;
    text += fmt::format("- **{}** `{}` [{}]\n", row.text("status"), row.text("case_id"),
                        who(row, "device"));
    for (const auto column : {"reason", "first_bad", "repro"})
      if (const std::string t = row.text(column); !t.empty())
        text += fmt::format("  - {}: {}\n", column,
                            std::string_view(column) == "repro" ? "`" + t + "`" : t);
  }
  return text.empty() ? text : "## Not passed\n\n" + text + "\n";
}

std::string per_op(const std::vector<Row>& rows) {
  struct Line {
    int pass = 0, bad = 0, skipped = 0;
    bool judged = false;  // an oracle that is only timed is not
    double bound = 0, share = 0;
    // Where no output has a bound, each was compared bit by bit.
    std::string worst() const {
      if (!judged) return "";
      if (bound == 0 && share == 0) return bad ? "" : "exact";
      return fmt::format("{:.3f}", share);
    }
  };
  std::map<std::pair<std::string, std::string>, Line> lines;
  for (const Row& row : rows) {
    Line& line = lines[{row.text("op"), who(row, "backend")}];
    const std::string status = row.text("status");
    (status == "pass" ? line.pass : is_bad(row) ? line.bad : line.skipped) += 1;
    line.judged |= !row.text("bound").empty();
    line.bound = std::max(line.bound, number(row, "bound"));
    line.share = std::max(line.share, number(row, "used_share"));
  }
  std::string text =
      "## Ops\n\n| op | implementation | passed | not passed | skipped | worst error / bound |\n"
      "| --- | --- | ---: | ---: | ---: | ---: |\n";
  for (const auto& [key, l] : lines)
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", key.first, cell(key.second), l.pass,
                        l.bad, l.skipped, l.worst());
  return text + "\n";
}

// A line for each case whose text in `column` is not empty.
std::string section(const std::vector<Row>& rows, std::string_view title, std::string_view column,
                    bool (*wanted)(const Row&)) {
  std::set<std::string> seen;
  std::string text;
  for (const Row& row : rows) {
    const std::string what = row.text(column);
    if (what.empty() || !wanted(row)) continue;
    const std::string line = fmt::format("- `{}`: {}\n", row.text("case_id"), what);
    if (seen.insert(line).second) text += line;  // two implementations of one case
  }
  return text.empty() ? text : fmt::format("## {}\n\n{}\n", title, text);
}

std::string times(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows)
    if (!row.text("time_us_median").empty())
      text +=
          fmt::format("| `{}` | {} | {} | {:.2f} | {:.2f} | {:.2f} | {} |\n", row.text("case_id"),
                      cell(row.text("impl")), cell(row.text("l2") + " " + row.text("launch")),
                      number(row, "time_us_median"), number(row, "time_us_q1"),
                      number(row, "time_us_q3"), row.text("samples"));
  if (text.empty()) return text;
  return "## Times\n\n| case | implementation | condition | median us | q1 us | q3 us | samples |\n"
         "| --- | --- | --- | ---: | ---: | ---: | ---: |\n" +
         text + "\n";
}

class MarkdownSink : public Sink {
 public:
  explicit MarkdownSink(const std::string& path) : file_(path, OutputFile::Mode::replace) {}
  void add(const Row& row) override { rows_.push_back(row); }
  void add_earlier(const Row& row) override { rows_.push_back(row); }
  void finish() override { file_.write(markdown_document(rows_)); }

 private:
  OutputFile file_;
  std::vector<Row> rows_;
};

}  // namespace

std::string markdown_document(const std::vector<Row>& rows) {
  if (rows.empty()) return "# Report\n\nNothing ran.\n";
  std::map<std::string, int> by_status;
  std::set<std::string> devices;
  for (const Row& row : rows) {
    ++by_status[row.text("status")];
    if (!row.text("device").empty()) devices.insert(row.text("device"));
  }
  std::string text = fmt::format("# {}: {} row{}\n\n", rows.front().text("tool"), rows.size(),
                                 rows.size() == 1 ? "" : "s");
  std::string counts;
  for (const auto& [status, n] : by_status)
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", n, status);
  text += fmt::format("Verdicts: {}. Devices: {}. Revision {}, {}, run {}.\n\n", counts,
                      devices.empty() ? "none" : fmt::format("{}", fmt::join(devices, ", ")),
                      rows.front().text("git_sha"), rows.front().text("utc"),
                      rows.front().text("run_id"));
  const auto skipped = [](const Row& row) { return !is_bad(row) && row.text("status") != "pass"; };
  return text + failures(rows) + per_op(rows) + section(rows, "Skipped", "reason", skipped) +
         times(rows) +
         section(rows, "Findings about the input", "findings", [](const Row&) { return true; });
}

std::unique_ptr<Sink> markdown_sink(const std::string& path) {
  return std::make_unique<MarkdownSink>(path);
}

}  // namespace harness
