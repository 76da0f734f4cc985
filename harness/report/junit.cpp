// SPDX-License-Identifier: Apache-2.0
// JUnit: a test suite per op, a test case per row; skipped and unsupported cases are skipped, never
// passed.
#include <fmt/format.h>

#include <map>

#include "harness/report/output.h"
#include "harness/report/sink.h"

namespace harness {

namespace {

std::string xml(std::string_view text) {
  std::string out;
  for (const unsigned char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c < 0x20 && c != '\t')
      out += ' ';  // no XML 1.0 character
    else if (c >= 0x80)
      out += '?';  // the text may be no valid UTF-8; a broken report helps nobody
    else
      out += static_cast<char>(c);
  }
  return out;
}

enum class Kind { pass, failure, error, skipped };

Kind kind_of(const std::string& status) {
  if (status == "pass") return Kind::pass;
  if (status == "skip" || status == "unsupported") return Kind::skipped;
  if (status == "error" || status == "timeout" || status == "crash") return Kind::error;
  return Kind::failure;  // fail, inconclusive, impossible
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  void count(Kind k) {
    ++tests;
    failures += k == Kind::failure;
    errors += k == Kind::error;
    skipped += k == Kind::skipped;
  }
  std::string attributes() const {
    return fmt::format(R"(tests="{}" failures="{}" errors="{}" skipped="{}")", tests, failures,
                       errors, skipped);
  }
};

std::string test_case(const Row& row) {
  const std::string status = row.text("status");
  const std::string where = fmt::format("{} [{}]", row.text("case_id"), row.text("impl"));
  const std::string backend = row.text("backend").empty() ? "dump" : row.text("backend");
  const std::string head = fmt::format(R"(    <testcase classname="{}.{}" name="{}")", xml(backend),
                                       xml(row.text("op")), xml(where));
  const std::string reason = row.text("reason"), bad = row.text("first_bad");
  const std::string message = xml(reason.empty() ? bad : reason);
  switch (kind_of(status)) {
    case Kind::pass:
      return head + "/>\n";
    case Kind::skipped:
      return fmt::format("{}>\n      <skipped message=\"{}\"/>\n    </testcase>\n", head, message);
    case Kind::error:
      return fmt::format(
          "{}>\n      <error type=\"{}\" message=\"{}\">{}</error>\n    </testcase>\n", head,
          status, message, xml(row.text("repro")));
    case Kind::failure:
      break;
  }
  const std::string repro = row.text("repro");  // a comparison has neither
  return fmt::format(
      "{}>\n      <failure type=\"{}\" message=\"{}\">{}{}{}</failure>\n    </testcase>\n", head,
      status, message, xml(bad), bad.empty() || repro.empty() ? "" : " | ", xml(repro));
}

class JunitSink : public Sink {
 public:
  explicit JunitSink(const std::string& path) : file_(path, OutputFile::Mode::replace) {}
  void add(const Row& row) override { rows_.push_back(row); }
  void add_earlier(const Row& row) override { rows_.push_back(row); }
  void finish() override { file_.write(junit_document(rows_)); }

 private:
  OutputFile file_;
  std::vector<Row> rows_;
};

}  // namespace

std::string junit_document(const std::vector<Row>& rows) {
  Counts all;
  std::map<std::string, std::pair<Counts, std::string>> suites;
  for (const Row& row : rows) {
    const Kind kind = kind_of(row.text("status"));
    all.count(kind);
    auto& [counts, cases] = suites[row.text("op")];
    counts.count(kind);
    cases += test_case(row);
  }
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += fmt::format("<testsuites {}>\n", all.attributes());
  for (const auto& [op, suite] : suites)
    text += fmt::format("  <testsuite name=\"{}\" {}>\n{}  </testsuite>\n", xml(op),
                        suite.first.attributes(), suite.second);
  return text + "</testsuites>\n";
}

std::unique_ptr<Sink> junit_sink(const std::string& path) {
  return std::make_unique<JunitSink>(path);
}

}  // namespace harness
