// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/checked_values.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"

namespace cli {

using harness::BadRequest;

namespace {

// CLI11 lets an option of a vector swallow all words that follow; here each flag takes one word and
// may be repeated.
CLI::Option* repeated(CLI::App& app, const std::string& flags, const std::string& value,
                      std::vector<std::string>& into, const std::string& what) {
  return app.add_option(flags, into, what)->allow_extra_args(false)->type_name(value);
}

void add_shapes(CLI::App& app, Options& o, const char* group) {
  repeated(app, "-a,--axis", "AXIS", o.axes,
           "name=v1,v2 or name=from:to:*2 (also :+step); [5,7] is one value")
      ->group(group);
  app.add_option("-p,--preset", o.preset, "shapes of a model, see `list`; -a overrides them")
      ->type_name("NAME")
      ->group(group);
}

void add_cases(CLI::App& app, Options& o) {
  app.add_option("ops", o.ops, "ops, \"qsa.attend\" or \"attend\"; none: all")->type_name("");
  add_shapes(app, o, "Cases");
  app.add_option("-f,--filter", o.filter, "only cases whose id matches")
      ->type_name("REGEX")
      ->group("Cases");
  app.add_option("--random", o.random,
                 "this many cases of random axes, dealt to the ops; -a pins an axis")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->group("Cases");
  app.add_option("--cases", o.cases, "a file with a case a line, an op and its axes: tq.decode dim=256 lens=8192*4")
      ->type_name("FILE")
      ->group("Cases");
  app.add_option("--seed", o.seed, "a case is its seed plus its axes")
      ->type_name("N")
      ->check(kSeed)
      ->capture_default_str()
      ->group("Cases");
  app.add_flag("--allow-empty", o.allow_empty, "no case at all is no error (still exit 77)")
      ->group("Cases");
  app.add_flag("--dry-run", o.dry_run, "print case ids, bytes and flops; run nothing")
      ->group("Cases");
}

void add_judged_rows(CLI::App& app, Options& o) {
  app.add_option("--judge-rows", o.judge_rows,
                 "of a larger case judge only so many rows, drawn by the seed; its verdict says so "
                 "(attend, score, topk; decode, dequant: sequences). The digest is of all")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->group("Judging");
}

void add_dumps(CLI::App& app, Options& o) {
  app.add_option("--op", o.op, "the op, where the file does not say it")
      ->type_name("OP")
      ->group("Dumps");
  repeated(app, "--set", "K=V", o.set, "a scalar that the file lacks or has wrong")->group("Dumps");
  repeated(app, "--tensor", "N=FILE", o.tensor,
           "name=file or name=file:key, a tensor of another file")
      ->group("Dumps");
  repeated(app, "--map", "OURS=THEIRS", o.map, "the file's name of a tensor")->group("Dumps");
  repeated(app, "--as", "N=DTYPE", o.as, "read the bits of a tensor as bf16, e4m3fn ...")
      ->group("Dumps");
}

void add_target(CLI::App& app, Options& o) {
  repeated(app, "-d,--device", "DEVICE", o.devices,
           "simt, cuda:0, hip:0 or all; default: first GPU, else simt")
      ->group("Where");
  repeated(app, "--plugin", "FILE", o.plugins, "a kernel plugin beside the shipped ones")
      ->group("Where");
  app.add_option("--impl", o.implementations, "only these implementations, or best: the one that serves the case, sm_90 before sm_80 before "
                 "portable; default: all of an op")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->type_name("A,B")
      ->group("Where");
  app.add_option("--wave", o.wave, "simt: lanes of a wave, 32 or 64")
      ->type_name("32|64")
      ->check(CLI::IsMember({32, 64}))
      ->group("Where");
  app.add_option("--order", o.order, "simt: order of lanes and waves: fwd, rev or seed:N")
      ->type_name("ORDER")
      ->group("Where");
  app.add_option(
         "--timeout", o.timeout_s,
         "seconds a case may take, 0: no limit; a hang ends the run, or its child (--isolate)")
      ->type_name("S")
      ->check(kSeconds)
      ->capture_default_str()
      ->group("Where");
}

void add_isolation(CLI::App& app, Options& o) {
  app.add_flag("--isolate", o.isolate,
               "a child process per case: a crash or a hang costs one row, the rest goes on")
      ->group("Long sweeps");
  app.add_option("--isolated-case", o.isolated_case)->group("");  // how --isolate starts itself
}

void add_sweeping(CLI::App& app, Options& o) {
  constexpr const char* kGroup = "Long sweeps";
  add_isolation(app, o);
  app.add_flag("--resume", o.resume, "do not run again what has a row in the file of --csv")
      ->group(kGroup);
  app.add_option("--mem-fraction", o.mem_fraction,
                 "share of the device's memory that a case may take; a larger one is skipped")
      ->type_name("F")
      ->check(kShare)
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag_function(
         "--progress", [&o](int64_t) { o.progress = 1; },
         "a line on standard error that tells how far it is; default: on a terminal")
      ->group(kGroup);
  app.add_flag_function(
         "--no-progress", [&o](int64_t) { o.progress = 0; }, "none on a terminal either")
      ->group(kGroup);
}

void add_judging(CLI::App& app, Options& o) {
  app.add_option("--plant", o.plant,
                 "damage each result on purpose; the judge has to notice (else exit 6)")
      ->type_name("FAULT")
      ->group("Judging");
  app.add_flag("--strict", o.strict, "findings about the input count as failures")
      ->group("Judging");
}

void add_running(CLI::App& app, Options& o) {
  auto* fast = app.add_flag("--fail-fast", o.fail_fast, "stop at the first case that does not pass")
                   ->group("Judging");
  app.add_flag_function(
         "--keep-going", [](int64_t) {}, "go on after a failure (the default)")
      ->excludes(fast)
      ->group("Judging");
}

void add_l2(CLI::App& app, Options& o) {
  app.add_option("--l2", o.l2, "cold, warm, both, or rotate: copies of the case take turns")
      ->type_name("STATE")
      ->check(CLI::IsMember({"cold", "warm", "both", "rotate"}))
      ->capture_default_str()
      ->group("Measuring");
}

void add_measuring(CLI::App& app, Options& o) {
  app.add_option("--launch", o.launch, "graph or stream")
      ->type_name("HOW")
      ->check(CLI::IsMember({"graph", "stream"}))
      ->capture_default_str()
      ->group("Measuring");
  app.add_option("--min-time", o.min_time_s,
                 "seconds of sampling per row (up to 10 times that while it is noisy)")
      ->type_name("S")
      ->check(kSomeSeconds)
      ->capture_default_str()
      ->group("Measuring");
  app.add_option("--max-noise", o.max_noise_pct,
                 "percent; a noisier row is inconclusive. Default 5; the oracle's rows are held to "
                 "it only if given")
      ->type_name("PCT")
      ->check(kPercent)
      ->group("Measuring");
}

void add_comparing(CLI::App& app, Options& o) {
  constexpr const char* kGroup = "Comparing";
  app.add_option("files", o.files, "A.csv (before) and B.csv (after)")->required()->type_name("");
  app.add_option(
         "--gate", o.gate_pct,
         "a case that is SLOWER by more than this is a regression; a pair that could not see "
         "a change of this size is UNCLEAR. 0: every SLOWER, and 5 % has to be seen")
      ->type_name("PCT")
      ->check(kPercent)
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag("--across-devices", o.across_devices,
               "compare machines: devices may differ, and nothing is a regression without --gate")
      ->group(kGroup);
  app.add_option("--impl", o.implementations,
                 "only this implementation, or A's and B's: --impl portable,mine")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->type_name("A,B")
      ->group(kGroup);
  app.add_flag("--require-all", o.require_all,
               "a case that only one side has or could time is UNCLEAR (exit 3)")
      ->group(kGroup);
  app.add_option("--peer", o.peer,
                 "CSV op,shape,cold_us,warm_us of a peer's kernels: its ratio beside each case; "
                 "with one file it is A")
      ->type_name("FILE")
      ->group(kGroup);
}

// Of `compare`: whole documents, and no line for every case that was run.
void add_documents(CLI::App& app, Options& o) {
  constexpr const char* kGroup = "Reports, - is stdout";
  app.add_option("--csv", o.csv, "a line per case")->type_name("FILE")->check(kPath)->group(kGroup);
  app.add_option("--junit", o.junit, "JUnit XML")->type_name("FILE")->check(kPath)->group(kGroup);
  app.add_option("--md", o.markdown, "Markdown")->type_name("FILE")->check(kPath)->group(kGroup);
  app.add_flag("-q,--quiet", o.quiet, "only the last line")->group(kGroup);
}

void add_reports(CLI::App& app, Options& o) {
  app.add_option("--csv", o.csv, "rows; an existing file is appended to")
      ->type_name("FILE")
      ->check(kPath)
      ->group("Reports, - is stdout");
  app.add_option("--json", o.json, "rows as JSON lines; appended to")
      ->type_name("FILE")
      ->check(kPath)
      ->group("Reports, - is stdout");
  app.add_option("--junit", o.junit, "JUnit XML")->type_name("FILE")->check(kPath)->group("Reports, - is stdout");
  app.add_option("--md", o.markdown, "Markdown summary")
      ->type_name("FILE")
      ->check(kPath)
      ->group("Reports, - is stdout");
  auto* verbose = app.add_flag("-v,--verbose", o.verbose, "a line for every case, with findings")
                      ->group("Reports, - is stdout");
  app.add_flag("-q,--quiet", o.quiet, "only the last line")
      ->excludes(verbose)
      ->group("Reports, - is stdout");
}

void add_report(CLI::App& app, Options& o) {
  app.add_option("files", o.files, "rows of runs (--csv), of any number of devices")
      ->required()
      ->type_name("");
  app.add_option("--html", o.html, "one page that needs no other file")->type_name("FILE")->check(kPath);
  app.add_option("--md", o.markdown, "the same as Markdown")->type_name("FILE")->check(kPath);
  app.add_option("--datasheets", o.datasheets, "peaks to show beside measured roofs")
      ->type_name("FILE");
  app.add_option("--peer", o.peer,
                 "CSV op,shape,cold_us,warm_us of a peer's kernels on that device: one more "
                 "implementation, side by side with ours")
      ->type_name("FILE");
  app.add_option("--targets", o.targets,
                 "CSV of times that are asked (datasets/targets): a table of what is met and missed")
      ->type_name("FILE");
}

constexpr std::string_view kCompared =
    "SLOWER, FASTER: the interval of B / A is beyond 1. SAME: it holds 1, and a change of the "
    "gate's "
    "size, either way, would have been seen.\n"
    "UNCLEAR: it would not have been (`sees` says which slowdown would), or fewer than 8 samples.\n"
    "Several runs of a case in one file are pooled. Roofs (roof.*) are listed, not judged.\n"
    "Exit: 0 nothing slower, 2 a bad file or other devices, 3 UNCLEAR, 4 a regression, 77 no case "
    "in both\n";

constexpr std::string_view kReported = "Exit: 0 written, 2 usage or bad input, 77 no rows\n";

constexpr std::string_view kExits =
    "Exit: 0 all judged cases pass, 1 a wrong result, 2 usage or bad input, 3 inconclusive, 5 "
    "device error or timeout,\n"
    "      6 a planted fault survived, 77 nothing was judged here\n";

std::string examples_of(const Tool& tool, const VerbName& verb) {
  std::string text;
  const auto add = [&](std::string_view rest) {
    text += fmt::format("  {} {}{}\n", tool.name, verb.word, rest);
  };
  switch (verb.verb) {
    case Verb::verify:
      add(tool.families.size() > 1 ? " attend qsa.merge -d simt --csv rows.csv"
                                   : " decode -d simt --csv rows.csv");
      add(" -f ':rows=1' -v");
      add(tool.families.size() > 1 ? " attend --plant last-token-lost   # must exit 1"
                                   : " decode --plant last-token-lost   # must exit 1");
      break;
    case Verb::replay:
      add(" call.safetensors -d cuda:0              # with actual.*: judged; without: run and "
          "judged");
      add(" other.safetensors --op score --map q=query --set compress_ratio=4");
      add(" partial_output.npy --op qsa.merge --tensor partial_lse=lse.npy");
      if (tool.families.size() == 1) text = text.substr(0, text.find('\n') + 1);
      break;
    case Verb::bench:
      add(" --l2 both --csv rows.csv");
      add(tool.families[0] == "tq" ? " decode --plugin ./mine.so" : " attend --plugin ./mine.so");
      add(tool.families[0] == "tq" ? " decode --load cache.safetensors"
                                   : " score --load call.safetensors");
      break;
    case Verb::roofs:
      add(" --csv roofs.csv");
      add(" -d all");
      break;
    case Verb::list:
      add("");
      add(" dump.safetensors ids.npy");
      add(tool.families[0] == "tq" ? " decode --dispatch -p qwen3-4b-k8v4 --profile sm_80,sm_90"
                                   : " attend --dispatch -a rows=64 --profile sm_80,sm_90");
      break;
    case Verb::compare:
      add(" base.csv new.csv --md report.md         # exit 4: slower, 3: noise, 0: neither");
      add(" base.csv new.csv --gate 3               # slower by more than 3 %");
      add(" h200.csv gb300.csv --across-devices");
      break;
    case Verb::env:
      add("");
      break;
    case Verb::report:
      add(" rows.csv --html report.html --md report.md");
      add(" h200.csv a100.csv --html machines.html");
      break;
  }
  return text;
}

std::string left_side(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  std::string text;
  for (const auto& name : option.get_snames()) text += "-" + name + ", ";
  text += "--" + option.get_lnames().front();
  if (option.get_items_expected_max() > 0) {
    text += " " + option.get_type_name().substr(
                      0, option.get_type_name().find(':'));  // without the validators
  }
  return text;
}

std::string help_of(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const auto* option : app.get_options())
    if (!option->get_group().empty() &&
        std::ranges::find(groups, option->get_group()) == groups.end())
      groups.push_back(option->get_group());
  std::string text = fmt::format("{}: {}\nUsage: {} [FLAGS]", app.get_name(), app.get_description(),
                                 app.get_name());
  for (const auto* option : app.get_options())
    if (option->get_positional()) text += fmt::format(" [{}...]", option->get_name(true));
  text += "\n";
  for (const auto& group : groups) {
    text += fmt::format("\n{}\n", group);
    for (const auto* option : app.get_options()) {
      if (option->get_group() != group) continue;
      const std::string given = option->get_default_str();
      text += fmt::format("  {:<24}{}{}\n", left_side(*option), option->get_description(),
                          given.empty() ? "" : fmt::format(" [{}]", given));
    }
  }
  return text + "\n" + app.get_footer();
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames())
      if (!option->get_group().empty()) flags.push_back("--" + name);
  return flags;
}

}  // namespace

bool parse_options(const Tool& tool, const VerbName& verb, const std::vector<std::string>& words,
                   Options& o) {
  o.words = words;
  CLI::App app(std::string(verb.what), fmt::format("{} {}", tool.name, verb.word));
  app.option_defaults()->take_last();
  app.allow_extras();
  switch (verb.verb) {
    case Verb::verify:
      add_cases(app, o);
      add_target(app, o);
      add_judging(app, o);
      add_judged_rows(app, o);
      add_running(app, o);
      add_sweeping(app, o);
      add_reports(app, o);
      break;
    case Verb::replay:
      app.add_option("files", o.files, "safetensors or .npy")->required()->type_name("");
      add_dumps(app, o);
      add_target(app, o);
      add_judging(app, o);
      add_running(app, o);
      add_isolation(app, o);
      add_reports(app, o);
      break;
    case Verb::bench:
      add_cases(app, o);
      repeated(app, "--load", "FILE", o.load, "a dump instead of generated cases")->group("Cases");
      add_dumps(app, o);
      add_target(app, o);
      add_l2(app, o);
      add_measuring(app, o);
      app.add_flag("--roofs", o.roofs,
                   "measure the device's roofs first: rows of their own, roof_* in the others")
          ->group("Measuring");
      add_judged_rows(app, o);
      add_running(app, o);
      add_sweeping(app, o);
      add_reports(app, o);
      break;
    case Verb::roofs:
      add_target(app, o);
      add_measuring(app, o);
      add_reports(app, o);
      break;
    case Verb::list:
      app.add_option("files", o.files,
                     "safetensors or .npy files, ops, presets; none: all ops and presets")
          ->type_name("");
      app.add_flag("--dispatch", o.dispatch,
                   "which kernels serve the ops on which GPU, and their launches; needs no GPU")
          ->group("Dispatch");
      app.add_option("--profile", o.profiles,
                     "GPUs of datasets/profiles.csv, by name or architecture; default: all")
          ->delimiter(',')
          ->type_name("A,B")
          ->group("Dispatch");
      add_shapes(app, o, "Dispatch");
      repeated(app, "--plugin", "FILE", o.plugins, "a kernel plugin beside the shipped ones")
          ->group("Dispatch");
      break;
    case Verb::compare:
      add_comparing(app, o);
      add_documents(app, o);
      break;
    case Verb::env:
      repeated(app, "--plugin", "FILE", o.plugins, "a kernel plugin beside the shipped ones");
      break;
    case Verb::report:
      add_report(app, o);
      break;
  }
  std::string notes = "\n" + std::string(verb.verb == Verb::compare  ? kCompared
                                         : verb.verb == Verb::report ? kReported
                                                                     : kExits);
  if (verb.verb == Verb::list || verb.verb == Verb::env) notes.clear();
  app.footer("Examples:\n" + examples_of(tool, verb) + notes);
  try {
    app.parse(
        std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them last first
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", help_of(app));
    return false;
  } catch (const CLI::ParseError& e) {
    throw BadRequest(fmt::format("{}; see {} {} --help", e.what(), tool.name, verb.word));
  }
  const auto given = [&](const char* flag) {
    const auto* option = app.get_option_no_throw(flag);
    return option && option->count() > 0;
  };
  o.gate_given = given("--gate");
  o.timeout_given = given("--timeout");
  o.mem_fraction_given = given("--mem-fraction");
  const auto extras = app.remaining();
  if (!extras.empty()) {
    const std::string flag = extras.front().substr(0, extras.front().find('='));
    throw BadRequest(fmt::format("unknown {} '{}'{}; see {} {} --help",
                                 flag.starts_with('-') ? "flag" : "word", flag,
                                 harness::nearest_hint(flag, flags_of(app)), tool.name, verb.word));
  }
  if (verb.verb == Verb::bench && o.load.empty() &&
      (!o.op.empty() || !o.set.empty() || !o.tensor.empty() || !o.map.empty() || !o.as.empty()))
    throw BadRequest(
        "--op, --set, --tensor, --map and --as complete a dump: they need --load FILE");
  if (o.judge_rows > 0 && !o.plant.empty())
    throw BadRequest("--plant damages any row: --judge-rows might not look at it");
  if (!o.load.empty() && (!o.axes.empty() || !o.preset.empty()))
    throw BadRequest("--load takes the case from a dump: -a and -p do not go with it");
  return true;
}

}  // namespace cli
