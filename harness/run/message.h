// SPDX-License-Identifier: Apache-2.0
// What the child of an isolated case tells its parent: one JSON object a line.
#pragma once

#include <optional>
#include <string>

#include "harness/judge/verdict.h"
#include "harness/report/row.h"

namespace harness {

struct Message {
  enum class Kind {
    begin,      // the work of `row` begins; if the child dies now, it is this row's fault
    row,        // a finished row
    there,      // `row` is already there (--resume)
    bad_input,  // the case of `row` cannot be made, because of `why`
    again,      // after an error the context may be broken: the rest of the case wants a new child
    end,        // the case is through
  };
  Kind kind = Kind::end;
  Row row;
  Verdict verdict;
  bool survived = false, judged = true;
  std::string why;
};

std::string to_line(const Message& message);  // without the line end
// Nothing where the line is no message: a kernel may write anywhere, also to the descriptor of the
// messages.
std::optional<Message> from_line(const std::string& line);

}  // namespace harness
