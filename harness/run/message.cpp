// SPDX-License-Identifier: Apache-2.0
#include "harness/run/message.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace harness {

namespace {

using Json = nlohmann::json;

// JSON has no infinity and no NaN: such a number is an object with its text.
Json of(double value) {
  if (std::isfinite(value)) return value;
  return {{"real", to_text(Cell(value))}};
}

double real(const Json& json) {
  if (!json.is_object()) return json.get<double>();
  const std::string text = json.at("real");
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Json of(const Row& row) {
  Json object = Json::object();
  for (size_t i = 0; i < kColumns.size(); ++i) {
    const std::string name(kColumns[i]);
    const Cell& cell = row.cells()[i];
    if (const auto* text = std::get_if<std::string>(&cell)) object[name] = *text;
    if (const auto* integer = std::get_if<int64_t>(&cell)) object[name] = *integer;
    if (const auto* number = std::get_if<double>(&cell)) object[name] = of(*number);
  }
  return object;
}

Row row_from(const Json& object) {
  Row row;
  for (const auto& [name, value] : object.items()) {
    if (value.is_string())
      row.set(name, value.get<std::string>());
    else if (value.is_number_integer())
      row.set(name, value.get<int64_t>());
    else
      row.set(name, real(value));
  }
  return row;
}

Json of(const Verdict& v) {
  return {{"status", int(v.status)},        {"reason", v.reason},
          {"findings", v.findings},         {"notes", v.notes},
          {"judged", v.judged},
          {"mismatches", v.mismatches},     {"nonfinite", v.nonfinite},
          {"unwritten", v.unwritten},       {"err_max_abs", of(v.err_max_abs)},
          {"err_rel_l2", of(v.err_rel_l2)}, {"bound", of(v.bound)},
          {"used_share", of(v.used_share)}, {"first_bad", v.first_bad}};
}

Verdict verdict_from(const Json& json) {
  Verdict v;
  v.status = static_cast<Status>(json.at("status").get<int>());
  json.at("reason").get_to(v.reason);
  json.at("findings").get_to(v.findings);
  json.at("notes").get_to(v.notes);
  json.at("judged").get_to(v.judged);
  json.at("mismatches").get_to(v.mismatches);
  json.at("nonfinite").get_to(v.nonfinite);
  json.at("unwritten").get_to(v.unwritten);
  v.err_max_abs = real(json.at("err_max_abs"));
  v.err_rel_l2 = real(json.at("err_rel_l2"));
  v.bound = real(json.at("bound"));
  v.used_share = real(json.at("used_share"));
  json.at("first_bad").get_to(v.first_bad);
  return v;
}

}  // namespace

std::string to_line(const Message& m) {
  Json json{{"kind", int(m.kind)}, {"row", of(m.row)}};
  if (m.kind == Message::Kind::row) {
    json["verdict"] = of(m.verdict);
    json["survived"] = m.survived;
    json["judged"] = m.judged;
  }
  if (m.kind == Message::Kind::bad_input) json["why"] = m.why;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Message> from_line(const std::string& line) try {
  const Json json = Json::parse(line);
  Message m;
  m.kind = static_cast<Message::Kind>(json.at("kind").get<int>());
  m.row = row_from(json.at("row"));
  if (json.contains("verdict")) m.verdict = verdict_from(json["verdict"]);
  m.survived = json.value("survived", false);
  m.judged = json.value("judged", true);
  m.why = json.value("why", "");
  return m;
} catch (const std::exception&) {  // no JSON, or other members and columns
  return {};
}

}  // namespace harness
