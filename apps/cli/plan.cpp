// SPDX-License-Identifier: Apache-2.0
#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cli/presets.h"
#include "harness/compare/shapes.h"
#include "harness/generate/axes.h"
#include "harness/generate/draw.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"

namespace cli {

using harness::BadRequest;
using harness::Card;
using harness::Coordinates;

namespace {

bool is_of(const Tool& tool, const Card& card) {
  const std::string_view family = card.op().substr(0, card.op().find('.'));
  return std::ranges::find(tool.families, family) != tool.families.end();
}

bool has_axis(const Card& card, std::string_view name) {
  return std::ranges::any_of(card.axes(), [&](const auto& a) { return a.name == name; });
}

std::vector<std::string> axis_names(const std::vector<const Card*>& ops) {
  std::vector<std::string> names;
  for (const Card* card : ops)
    for (const auto& axis : card->axes()) names.emplace_back(axis.name);
  return names;
}

// The coordinates that differ from the defaults, so that equal cases have equal ids however they
// were asked for.
Coordinates without_defaults(const Card& card, Coordinates at) {
  for (const auto& axis : card.axes())
    if (const auto it = at.find(axis.name); it != at.end() && it->second == axis.default_value)
      at.erase(it);
  return at;
}

// The name of the suite entry with these very coordinates; "axes" where there is none.
std::string label_of(const Card& card, const Coordinates& at) {
  for (const auto& entry : card.suite())
    if (without_defaults(card, harness::parse_coordinates(entry.axes)) == at)
      return std::string(entry.name);
  return "axes";
}

class Planner {
 public:
  Planner(const Tool& tool, const Options& options)
      : tool_(tool), options_(options), explicit_(!options.ops.empty()), ops_(resolve_ops(tool, options.ops)) {
    for (const auto& text : options.axes) sweeps_.push_back(parse_sweep(text));
    for (const auto& sweep : sweeps_) {
      if (std::ranges::any_of(ops_, [&](const Card* c) { return has_axis(*c, sweep.axis); }))
        continue;
      throw BadRequest(fmt::format("unknown axis '{}'{}; `list OP` shows the axes of an op",
                                   sweep.axis,
                                   harness::nearest_hint(sweep.axis, axis_names(ops_))));
    }
    if (options.random > 0 && !options.preset.empty())
      throw BadRequest("--random draws the axes itself: expected no --preset; -a pins an axis");
    if (!options.preset.empty()) preset_ = find_preset(tool, options.preset);
    if (!options.cases.empty() && (explicit_ || !sweeps_.empty() || preset_ || options.random > 0))
      throw BadRequest("--cases says ops and axes itself: expected no op, -a, -p or --random beside it");
    check_fault();
  }

  Plan make() {
    if (!options_.cases.empty()) {
      add_file();
      filter();
      return std::move(plan_);
    }
    for (const Card* card : ops_)
      if (const std::string why = why_left_out(*card); !why.empty()) {
        if (explicit_) throw BadRequest(why);
        plan_.left_out.push_back(why);
      } else {
        add(*card);
      }
    filter();
    return std::move(plan_);
  }

 private:
  void check_fault() const {
    if (options_.plant.empty()) return;
    std::vector<std::string> names;
    for (const Card* card : ops_)
      for (const auto& fault : card->faults()) names.emplace_back(fault.name);
    if (std::ranges::find(names, options_.plant) == names.end())
      throw BadRequest(fmt::format("unknown fault '{}'{}; `list OP` shows the faults of an op",
                                   options_.plant, harness::nearest_hint(options_.plant, names)));
  }

  std::string why_left_out(const Card& card) const {
    for (const auto& sweep : sweeps_)
      if (!has_axis(card, sweep.axis))
        return fmt::format("{} has no axis '{}'{}", card.op(), sweep.axis,
                           harness::nearest_hint(sweep.axis, axis_names({&card})));
    if (preset_ && preset_->coordinates(card).empty())
      return fmt::format("{} has none of the shapes of preset '{}'", card.op(), preset_->name);
    if (!options_.plant.empty() && !find_fault(card, options_.plant))
      return fmt::format("{} has no fault '{}'", card.op(), options_.plant);
    return {};
  }

  void add(const Card& card) {
    if (options_.random > 0) return add_random(card);
    if (sweeps_.empty() && !preset_) {
      for (const auto& entry : card.suite())
        add(card, std::string(entry.name), harness::parse_coordinates(entry.axes), {});
      return;
    }
    for (const auto& at : combine(preset_ ? preset_->coordinates(card) : Coordinates{}, sweeps_))
      add(card, {}, at, preset_ ? preset_->name : "");
  }

  // A case a line, once, "tq.decode heads=12 lens=8192*4"; ops of another tool's families are left to that tool.
  void add_file() {
    std::ifstream file(options_.cases);
    if (!file) throw BadRequest(fmt::format("--cases {}: cannot be read", options_.cases));
    int64_t others = 0;
    std::set<std::string> ids;
    std::string text;
    for (int line = 1; std::getline(file, text); ++line) {
      std::istringstream words(text);
      std::string op, word;
      if (!(words >> op) || op.starts_with('#')) continue;
      try {
        const std::string family = op.substr(0, op.find('.'));
        if (op.find('.') != std::string::npos && std::ranges::find(tool_.families, family) == tool_.families.end() &&
            harness::find_card(op)) {
          ++others;
          continue;
        }
        const Card& card = *resolve_ops(tool_, {op}).front();
        std::string axes;
        while (words >> word) axes += " " + word;
        const Coordinates at = harness::shape_coordinates(axes);
        for (const auto& [axis, value] : at)
          if (!has_axis(card, axis))
            throw BadRequest(
                fmt::format("{} has no axis '{}'{}", card.op(), axis, harness::nearest_hint(axis, axis_names({&card}))));
        add(card, {}, at, "");
        if (!ids.insert(plan_.cases.back().id).second) plan_.cases.pop_back();
      } catch (const std::invalid_argument& e) {
        throw BadRequest(fmt::format("{}:{}: {}", options_.cases, line, e.what()));
      } catch (const BadRequest& e) {
        throw BadRequest(fmt::format("{}:{}: {}", options_.cases, line, e.what()));
      }
    }
    if (others) plan_.left_out.push_back(fmt::format("{} cases of {} of other tools", others, options_.cases));
  }

  // Its share of the random cases; an axis that -a sweeps has one of those values.
  void add_random(const Card& card) {
    const int64_t ops = int64_t(ops_.size());
    const int64_t at = std::ranges::find(ops_, &card) - ops_.begin();
    const harness::Random random(options_.seed, fmt::format("random {}", card.op()));
    for (int64_t i = 0; i < options_.random / ops + (at < options_.random % ops); ++i) {
      Coordinates pinned;
      for (const auto& sweep : sweeps_)
        pinned[sweep.axis] = sweep.values[size_t(
            random.stream(sweep.axis).below(uint64_t(i), int64_t(sweep.values.size())))];
      try {
        add(card, "random", harness::draw(card, pinned, random.stream("case", uint64_t(i)), options_.seed), "");
      } catch (const std::invalid_argument& e) {
        throw BadRequest(e.what());
      }
    }
  }

  void add(const Card& card, std::string label, const Coordinates& given,
           const std::string& preset) {
    Planned p{&card, {}, preset, without_defaults(card, given), {}};
    if (label.empty()) label = preset.empty() ? label_of(card, p.at) : preset;
    p.id = harness::case_id(card.op(), label, card.axes(), p.at);
    p.selection = std::string(card.op());
    if (!preset.empty()) p.selection += " -p " + shell_word(preset);
    for (const auto& [axis, value] : preset.empty() ? p.at : given)
      if (preset.empty() || preset_->coordinates(card)[axis] != value)
        p.selection += " -a " + shell_word(axis_text(axis, value));
    // The defaults alone are a case too: one axis has to be named, or the whole suite would run.
    if (preset.empty() && p.at.empty() && !card.axes().empty()) {
      const auto& first = card.axes().front();
      p.selection += " -a " + shell_word(axis_text(first.name, first.default_value));
    }
    p.selection += fmt::format(" --seed {}", options_.seed);
    plan_.cases.push_back(std::move(p));
  }

  void filter() {
    if (!options_.filter.empty()) {
      std::regex pattern;
      try {
        pattern = std::regex(options_.filter, std::regex::ECMAScript);
      } catch (const std::regex_error& e) {
        throw BadRequest(
            fmt::format("filter '{}' is no regular expression: {}", options_.filter, e.what()));
      }
      const size_t before = plan_.cases.size();
      std::erase_if(plan_.cases,
                    [&](const Planned& p) { return !std::regex_search(p.id, pattern); });
      if (plan_.cases.empty() && !options_.allow_empty)
        throw BadRequest(fmt::format(
            "filter '{}' matches none of {} cases (--dry-run prints their ids; --allow-empty "
            "accepts that)",
            options_.filter, before));
    }
    if (plan_.cases.empty() && !options_.allow_empty)
      throw BadRequest("these ops, axes and presets make no case");
  }

  const Tool& tool_;
  const Options& options_;
  const bool explicit_;
  std::vector<const Card*> ops_;
  std::vector<Sweep> sweeps_;
  std::optional<Preset> preset_;
  Plan plan_;
};

}  // namespace

std::vector<const Card*> resolve_ops(const Tool& tool, const std::vector<std::string>& words) {
  std::vector<const Card*> ops;
  if (words.empty())
    for (const Card* card : harness::cards())
      if (is_of(tool, *card)) ops.push_back(card);
  for (const auto& word : words) {
    const Card* card = nullptr;
    // A bare word means an op of the tool's own families: in tq-bench "merge" is tq.merge.
    std::vector<const Card*> own;
    for (const Card* c : harness::cards())
      if (is_of(tool, *c) && c->op().substr(c->op().find('.') + 1) == word) own.push_back(c);
    if (own.size() == 1) {
      card = own.front();
    } else {
      try {
        card = &harness::resolve_op(word);
      } catch (const std::invalid_argument& e) {
        throw BadRequest(e.what());
      }
      if (!is_of(tool, *card))
        throw BadRequest(fmt::format("op '{}' is not one of {}: it belongs to {}", card->op(),
                                     tool.name,
                                     card->op().starts_with("tq.") ? "tq-bench" : "qsa-bench"));
    }
    if (std::ranges::find(ops, card) == ops.end()) ops.push_back(card);
  }
  return ops;
}

Plan make_plan(const Tool& tool, const Options& options) { return Planner(tool, options).make(); }

std::optional<harness::Fault> find_fault(const Card& card, const std::string& name) {
  for (const auto& fault : card.faults())
    if (fault.name == name) return fault;
  return {};
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-+=.,:/@%") == std::string::npos;
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace cli
