// SPDX-License-Identifier: Apache-2.0
#include "cli/isolate.h"

#include <fmt/format.h>

#include <optional>

#include "cli/resume.h"
#include "harness/run/isolate.h"
#include "harness/run/message.h"

namespace cli {

using harness::Message;
using harness::Row;
using harness::Status;
using harness::Verdict;

namespace {

// One child: takes its messages.
class Child {
 public:
  explicit Child(Session& session) : session_(session) {}

  void take(const Message& m) {
    switch (m.kind) {
      case Message::Kind::begin:
        current_ = m.row;
        session_.begin(m.row);
        break;
      case Message::Kind::row:
        current_.reset();
        if (session_.there(m.row)) break;
        new_rows_ = true;
        session_.finish_row(m.row, m.verdict, m.survived, m.judged);
        break;
      case Message::Kind::there:
        session_.there(m.row);
        break;
      case Message::Kind::bad_input:
        session_.bad_input(m.row, m.why);
        break;
      case Message::Kind::again:
        again_ = true;
        break;
      case Message::Kind::end:
        through_ = true;
        break;
    }
  }

  // The row that the child owes after it ended so; false where it owes none or nobody can say whose
  // fault it is, and another child would end the same way.
  bool wants_another(const harness::ChildEnd& end, const Row& fallback) {
    if (through_ || session_.should_stop()) return false;
    if (again_) return new_rows_;
    Verdict v;
    v.status = end.timed_out ? Status::timeout : Status::crash;
    v.reason = end.timed_out ? too_slow(session_.options().timeout_s) : end.how();
    const bool known = current_ && session_.there(*current_);
    session_.finish_row(current_ ? *current_ : fallback, v);
    return current_ && !known;
  }

 private:
  Session& session_;
  std::optional<Row> current_;
  bool through_ = false, again_ = false, new_rows_ = false;
};

}  // namespace

void run_isolated(Session& session, const VerbName& verb, int index, const Row& fallback,
                  const std::string& roofs) {
  const Options& o = session.options();
  std::vector<std::string> words{std::string(session.tool().name), std::string(verb.word),
                                 fmt::format("--isolated-case={}", index)};
  words.insert(words.end(), o.words.begin(), o.words.end());
  for (bool more = true; more && !session.should_stop();) {
    Child child(session);
    const auto end = harness::run_child(words, roofs + session.keys_of(fallback.text("case_id")),
                                        o.timeout_s, [&](const std::string& line) {
                                          if (const auto message = harness::from_line(line))
                                            child.take(*message);
                                        });
    more = child.wants_another(end, fallback);
  }
}

}  // namespace cli
