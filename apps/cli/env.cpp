// SPDX-License-Identifier: Apache-2.0
// `env`: the machine, the backends that are here with their devices, and why others are not.
#include <fmt/format.h>

#include <cstdlib>
#include <thread>

#include "cli/exit_code.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "harness/measure/machine.h"
#include "harness/plugins/device.h"
#include "harness/plugins/errors.h"

namespace cli {

namespace {

void print_device(const harness::Device& device) {
  const tk_device_info& i = device.info();
  fmt::print("  {:<9} {}", device.name(), i.name);
  if (i.arch[0]) fmt::print(", {}", i.arch);
  if (i.driver[0]) fmt::print(", driver {}", i.driver);
  if (i.toolkit[0]) fmt::print(", built with {}", i.toolkit);
  fmt::print(
      "\n            wave {}, {} multiprocessors, memory {} MiB, L2 {} KiB, shared {} KiB per "
      "block; {}, {}\n",
      i.wave, i.multiprocessors, i.memory_bytes >> 20, i.l2_bytes >> 10,
      i.shared_bytes_per_block >> 10,
      device.timed() ? "its times count" : "its times say nothing about a kernel",
      device.graphs() ? "graphs" : "no graphs");
}

}  // namespace

int env(const Tool& tool, const VerbName&, const Options& options) {
  fmt::print("{} {} ({}), plugin ABI {}, built with {}\n", tool.name, version(), git_sha(),
             TK_ABI_VERSION, harness::host_compiler());
  fmt::print("host: {}, {} threads, {} {}\n", harness::host_cpu(),
             std::thread::hardware_concurrency(), harness::host_system(), harness::host_arch());
  for (const char* name : {"TOOLKIT_PLUGIN_DIR", "TOOLKIT_DATASETS", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name)) fmt::print("{}={}\n", name, value);
  harness::Registry registry(harness::Registry::default_folders());
  for (const auto& file : options.plugins) registry.add(file);
  for (const auto& backend : registry.backends()) {
    if (const std::string why = registry.why_absent(backend); !why.empty()) {
      fmt::print("{}: absent, because {}\n", backend, why);
      continue;
    }
    int32_t count = 0;
    registry.runtime(backend).device_count(&count);
    fmt::print("{}: {} device{}\n", backend, count, count == 1 ? "" : "s");
    for (int32_t i = 0; i < count; ++i)
      print_device(harness::Device(registry, fmt::format("{}:{}", backend, i)));
  }
  for (const auto& plugin : registry.added())
    fmt::print("plugin {} ({}) on {}: {}\n", plugin->name(), plugin->file().string(),
               plugin->backend(), fmt::join(plugin->op_names(), ", "));
  return kPass;
}

}  // namespace cli
