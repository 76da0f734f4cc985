// SPDX-License-Identifier: Apache-2.0
#include "harness/report/schema.h"

#include <fmt/format.h>

#include "harness/plugins/errors.h"
#include "harness/report/row.h"

namespace harness {

void check_schema(const Table& table) {
  for (const Record& r : table.records)
    if (const std::string got = r.text("schema"); !got.empty() && got != std::to_string(kSchema))
      throw BadRequest(fmt::format(
          "{}:{}: schema: expected {}, got '{}': rows of another version of the tools; read them "
          "with that version, or measure again",
          table.file, r.line, kSchema, got));
}

}  // namespace harness
