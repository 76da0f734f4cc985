// SPDX-License-Identifier: Apache-2.0
// `list --dispatch`: which kernels serve a case on which GPU, with their launches; no GPU needed.
#include "cli/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "cli/exit_code.h"
#include "cli/plan.h"
#include "cli/presets.h"
#include "cli/work.h"
#include "harness/ops/names.h"
#include "harness/plugins/errors.h"
#include "harness/report/table.h"
#include "harness/run/execute.h"
#include "harness/run/launches.h"

namespace cli {

namespace {

// A line of datasets/profiles.csv.
struct Profile {
  std::string name, arch;
  tk_device_info info{};
};

std::vector<Profile> read_profiles() {
  const harness::Table table =
      harness::read_table((datasets_folder() / "profiles.csv").string(),
                          {"name", "arch", "multiprocessors", "shared_bytes_of_block"});
  std::vector<Profile> profiles;
  for (const harness::Record& r : table.records) {
    Profile p{r.text("name"), r.text("arch"), {}};
    p.info.struct_size = sizeof p.info;
    p.info.wave = 32;
    p.info.multiprocessors = static_cast<int32_t>(table.number(r, "multiprocessors").value_or(0));
    p.info.shared_bytes_per_block =
        static_cast<uint64_t>(table.number(r, "shared_bytes_of_block").value_or(0));
    std::snprintf(p.info.name, sizeof p.info.name, "%s", p.name.c_str());
    std::snprintf(p.info.arch, sizeof p.info.arch, "%s", p.arch.c_str());
    profiles.push_back(std::move(p));
  }
  return profiles;
}

// True where a build for the GPU architectures of `code` ("80-real,90a-real") runs on `arch` ("sm_86"):
// within a major version from its own minor one on; an architecture with a letter only on itself.
bool has_code_for(const std::string& arch, std::string code) {
  const int wanted = std::stoi(arch.substr(3));
  for (char& c : code)
    if (c == ',') c = ' ';
  std::istringstream words(code);
  for (std::string word; words >> word;) {
    size_t digits = 0;
    const int built = std::stoi(word, &digits);
    const bool own_only = digits < word.size() && word[digits] != '-';
    if (built == wanted || (!own_only && built / 10 == wanted / 10 && built < wanted)) return true;
  }
  return false;
}

// Those that the words name, by name or architecture; all where there is none.
std::vector<Profile> chosen_profiles(const std::vector<std::string>& words) {
  const auto all = read_profiles();
  if (words.empty()) return all;
  std::vector<Profile> chosen;
  std::string known;
  for (const auto& p : all) known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", p.arch, p.name);
  for (const auto& word : words) {
    const size_t before = chosen.size();
    std::ranges::copy_if(all, std::back_inserter(chosen),
                         [&](const Profile& p) { return p.arch == word || p.name == word; });
    if (chosen.size() == before)
      throw harness::BadRequest(fmt::format("unknown profile '{}'; known are {}", word, known));
  }
  return chosen;
}

void print_run(const harness::PlannedRun& run, const std::string& label) {
  if (!run.refused.empty()) {
    fmt::print("    {:<10} no: {}\n", label, run.refused);
    return;
  }
  if (run.launches.empty()) fmt::print("    {:<10} nothing to launch\n", label);
  std::string first = label;
  for (const auto& l : run.launches) {
    std::string grid = fmt::to_string(l.grid[0]);
    if (l.grid[1] > 1 || l.grid[2] > 1) grid += fmt::format("x{}x{}", l.grid[1], l.grid[2]);
    fmt::print("    {:<10} {:<44} {:>7} blocks of {:>4} threads{}\n", first, l.kernel, grid,
               l.threads,
               l.dynamic_shared_bytes ? fmt::format(", {} bytes", l.dynamic_shared_bytes) : "");
    first.clear();
  }
}

}  // namespace

int list_dispatch(const Tool& tool, const Options& options) {
  Options with = options;
  with.ops = options.files;
  if (with.preset.empty() && with.axes.empty()) {
    const auto presets = read_presets(tool);
    if (presets.empty()) throw harness::BadRequest("no preset here: give one case by -a name=value");
    with.preset = presets.front().name;
    fmt::print("preset {} (another: -p NAME, or -a name=value)\n", with.preset);
  }
  harness::Registry registry(harness::Registry::default_folders());
  for (const auto& file : options.plugins) registry.add(file);
  const auto profiles = chosen_profiles(options.profiles);
  const Plan plan = make_plan(tool, with);
  bool any = false;
  for (const auto& planned : plan.cases) {
    const harness::Case made = make_case(planned, with);
    fmt::print("\n{}\n  {}\n", planned.id, made.shape);
    if (!harness::has_rows(*planned.card, made)) {
      fmt::print("    0 rows: nothing to launch\n");
      continue;
    }
    for (const auto& profile : profiles) {
      fmt::print("  {} ({}, {} multiprocessors)\n", profile.arch, profile.name,
                 profile.info.multiprocessors);
      if (!has_code_for(profile.arch, TOOLKIT_CUDA_CODE))
        fmt::print("    (this build has no code for it, only for {}: -DTOOLKIT_CUDA_ARCHITECTURES)\n",
                   TOOLKIT_CUDA_CODE);
      for (const auto& i : registry.built("cuda", planned.card->op())) {
        any = true;
        print_run(harness::planned_run(i, *planned.card, made, profile.info), i.label);
      }
    }
  }
  if (!any)
    throw harness::Absent("no kernel for NVIDIA GPUs here: " + registry.why_absent("cuda"));
  return kPass;
}

}  // namespace cli
