// SPDX-License-Identifier: Apache-2.0
#include "reference/oracle.h"

namespace reference {

namespace {
std::map<std::string, Oracle, std::less<>>& table() {
  static std::map<std::string, Oracle, std::less<>> oracles;  // built by registrations before main
  return oracles;
}
}  // namespace

Oracle find(std::string_view op) {
  const auto it = table().find(op);
  return it == table().end() ? nullptr : it->second;
}

Registration::Registration(std::string_view op, Oracle oracle) { table().emplace(op, oracle); }

}  // namespace reference
