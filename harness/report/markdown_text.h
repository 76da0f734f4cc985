// SPDX-License-Identifier: Apache-2.0
// Foreign text inside Markdown: a case id, a reason or a name of a device changes no table and
// brings no HTML.
#pragma once

#include <string>
#include <string_view>

namespace harness::markdown {

// Inside a table: no line end and no bar may end the cell. Angle brackets and ampersands are made
// harmless, since Markdown lets HTML through.
std::string cell(std::string_view text);

// A code span with enough backticks around it. A bar is escaped in the cell of a table alone:
// elsewhere the backslash would be a part of the command that a reader copies.
std::string code(std::string_view text, bool in_table = false);

}  // namespace harness::markdown
