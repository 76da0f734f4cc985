// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/case_loader.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>

#include "harness/dumps/bad_file.h"
#include "harness/dumps/dump.h"
#include "harness/dumps/names.h"
#include "harness/dumps/result_check.h"
#include "harness/judge/stages.h"
#include "harness/ops/names.h"

namespace harness {

namespace {

std::string list_of(const Dump& d) {
  std::string names;
  for (const DumpEntry& e : d.entries()) names += (names.empty() ? "" : ", ") + e.name;
  return names.empty() ? "no tensor" : names;
}

// "file" or "file:key"; a file may hold colons itself.
std::pair<std::string, std::string> split_key(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text)) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

class Loader {
 public:
  Loader(const std::vector<std::string>& files, const LoadOptions& options) : options_(options) {
    for (const std::string& f : files) dumps_.push_back(Dump::open(f));
  }

  Case load() {
    const Card& card = resolve_card();
    names_.emplace(card);
    case_.op = card.op();
    case_.id = dumps_.empty() ? std::string(card.op()) : dumps_[0].path();
    for (const Dump& d : dumps_) take_all(d);
    take_named();
    refuse_unused_options();
    take_scalars();
    drop_scalars_of_stages(card);
    describe_shape();
    card.complete(case_);
    check(card);
    return std::move(case_);
  }

 private:
  const Card& resolve_card() {
    if (!options_.op.empty()) return resolve_op(options_.op);
    const Dump* from = nullptr;
    std::string op;
    for (const Dump& d : dumps_)
      if (const auto it = d.metadata().find("op"); it != d.metadata().end()) {
        if (from && op != it->second)
          throw BadFile(d.path(), "metadata op", "'" + op + "' as in " + from->path(),
                        "'" + it->second + "'");
        op = it->second;
        from = &d;
      }
    const std::string next = "say which op the dump is of: --op NAME";
    if (!from)
      throw BadFile(dumps_.empty() ? "dump" : dumps_[0].path(), "op", "a metadata entry op", "none",
                    next);
    try {
      return resolve_op(op);
    } catch (const std::invalid_argument& e) {
      throw BadFile(from->path(), "metadata op", "an op of this program", e.what(), next);
    }
  }

  // The names of ours that a tensor of a file goes by: those mapped to it, else its own.
  std::vector<std::string> ours(const std::string& theirs) {
    std::vector<std::string> out;
    for (const auto& [our, their] : options_.map)
      if (their == theirs) {
        out.push_back(our);
        used_maps_.insert(our);
      }
    if (out.empty() && !options_.map.contains(theirs)) out.push_back(theirs);
    return out;
  }

  void take_all(const Dump& d) {
    for (const DumpEntry& e : d.entries()) {
      const std::string theirs =
          e.name.empty() ? std::filesystem::path(d.path()).stem().string() : e.name;
      for (const std::string& name : ours(theirs)) {
        if (options_.tensors.contains(name)) continue;
        if (names_->place_of(name).kind != NameKind::unknown)
          take(name, d, e.name);
        else if (!d.is_storage(e.name))
          case_.notes.push_back(d.path() + ": tensor '" + name + "' is not used by " + case_.op +
                                names_->hint(name));
      }
    }
  }

  void take_named() {
    for (const auto& [name, text] : options_.tensors) {
      if (names_->place_of(name).kind == NameKind::unknown)
        throw std::invalid_argument("--tensor " + name + ": " + case_.op +
                                    " has no tensor of that name" + names_->hint(name));
      const auto [file, key] = split_key(text);
      const Dump d = Dump::open(file);
      if (key.empty() && d.entries().size() != 1)
        throw BadFile(file, "--tensor " + name, "one tensor, or a key (file:key)", list_of(d));
      if (!key.empty() && !d.find(key))
        throw BadFile(file, "--tensor " + name, "a tensor '" + key + "'", list_of(d));
      take(name, d, key.empty() ? d.entries()[0].name : key);
    }
  }

  void take(const std::string& name, const Dump& d, const std::string& theirs) {
    const NamePlace place = names_->place_of(name);
    TensorMap& into = place.kind == NameKind::input      ? case_.inputs
                      : place.kind == NameKind::expected ? case_.expected
                                                         : case_.actual;
    Tensor t = d.tensor(theirs);
    if (const auto as = options_.as.find(name); as != options_.as.end()) {
      const tk_dtype dtype = toolkit::dtype_named(as->second);
      if (toolkit::bytes_of(dtype) != toolkit::bytes_of(t.dtype))
        throw std::invalid_argument("--as " + name + "=" + as->second +
                                    ": expected a dtype as wide as the file's " +
                                    std::string(toolkit::name_of(t.dtype)));
      t.dtype = dtype;
      used_as_.insert(name);
    }
    if (!into.emplace(place.name, std::move(t)).second)
      throw BadFile(d.path(), "tensor '" + name + "'", "every tensor once", "a second one");
  }

  void refuse_unused_options() {
    for (const auto& [our, their] : options_.map)
      if (!used_maps_.contains(our)) {
        std::vector<std::string> all;
        for (const Dump& d : dumps_)
          for (const DumpEntry& e : d.entries()) all.push_back(e.name);
        throw std::invalid_argument("--map " + our + "=" + their + ": no file has a tensor '" +
                                    their + "'" + nearest_hint(their, all));
      } else if (names_->place_of(our).kind == NameKind::unknown) {
        throw std::invalid_argument("--map " + our + "=" + their + ": " + case_.op +
                                    " has no tensor '" + our + "'" + names_->hint(our));
      }
    for (const auto& [name, dtype] : options_.as)
      if (!used_as_.contains(name))
        throw std::invalid_argument("--as " + name + "=" + dtype +
                                    ": no tensor of that name was loaded" + names_->hint(name));
  }

  void take_scalars() {
    const auto ours = [](const std::string& key) {
      return key == "max_num_kv_splits" ? std::string("num_kv_splits")
                                        : key;  // the originals' two names for one thing
    };
    for (const Dump& d : dumps_)
      for (const auto& [key, text] : d.metadata()) {
        if (key == "preset") case_.preset = text;
        if (!names_->has_scalar(ours(key))) continue;  // unknown keys are somebody else's
        if (printable(text) != text)                   // NUL: kernels get C strings
          throw BadFile(d.path(), "metadata " + key, "text without control characters",
                        "'" + text.substr(0, 60) + "'");
        const auto [it, fresh] = case_.scalars.emplace(ours(key), text);
        if (!fresh && it->second != text && !options_.set.contains(ours(key)))
          throw BadFile(d.path(), "metadata " + key, "'" + it->second + "' as said before",
                        "'" + text + "'", "say which with --set " + key + "=...");
      }
    for (const auto& [key, text] : options_.set) {
      if (!names_->has_scalar(ours(key)))
        throw std::invalid_argument("--set " + key + "=" + text + ": " + case_.op +
                                    " has no scalar of that name" +
                                    nearest_hint(key, names_->scalars()));
      case_.scalars[ours(key)] = text;
    }
    if (const auto flavour = case_.scalars.find("fp8_flavour"); flavour != case_.scalars.end())
      if (const auto cache = case_.inputs.find("kv_cache"); cache != case_.inputs.end())
        cache->second.fp8_flavour = toolkit::dtype_named(flavour->second);
  }

  // A step without results of its stages is run whole, and then nobody reads what only a stage has.
  void drop_scalars_of_stages(const Card& card) {
    if (has_stages(case_)) return;
    std::erase_if(case_.scalars, [&](const auto& scalar) {
      const auto is_it = [&](const auto& spec) { return spec.name == scalar.first; };
      const bool known = std::ranges::any_of(card.contract().scalars, is_it);
      if (!known)
        case_.notes.push_back(case_.id + ": scalar '" + scalar.first + "' is not used by a whole " +
                              case_.op);
      return !known;
    });
  }

  void describe_shape() {
    for (const auto& [name, t] : case_.inputs) {
      case_.shape += (case_.shape.empty() ? "" : " ") + name + "=";
      for (size_t d = 0; d < t.shape.size(); ++d)
        case_.shape += (d ? "x" : "") + std::to_string(t.shape[d]);
    }
  }

  void check(const Card& card) {
    if (has_stages(case_)) {
      if (!case_.expected.empty())
        case_.notes.push_back(case_.id + ": the stages' expected.* are not compared");
      check_stages(case_);
      for (const StageCase& s : stage_cases(case_, case_.actual)) {
        const Card& stage = *find_card(s.made.op);
        check_results(stage, s.made, s.made.actual, s.stage + ".actual.");
        check_room(stage, s.made);
      }
      return;
    }
    const HostCall call(case_);
    toolkit::Args(card.contract(), call.call()).check(false);
    check_results(card, case_, case_.expected, "expected.");
    check_results(card, case_, case_.actual, "actual.");
    check_room(card, case_);
    card.check_data(case_);
  }

  const LoadOptions& options_;
  std::vector<Dump> dumps_;
  std::optional<CaseNames> names_;
  Case case_;
  std::set<std::string> used_maps_, used_as_;
};

}  // namespace

Case load_case(const std::vector<std::string>& files, const LoadOptions& options) {
  if (files.empty() && options.tensors.empty())
    throw std::invalid_argument("replay: expected at least one file, got none");
  return Loader(files, options).load();
}

std::pair<std::string, std::string> split_assignment(const std::string& flag,
                                                     const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    throw std::invalid_argument(flag + " " + text + ": expected name=value");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace harness
