// SPDX-License-Identifier: Apache-2.0
#include "harness/plugins/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <set>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

// Does a struct of `size` bytes cover the field? (Rule of plugin.h: look at a field only then.)
#define COVERS(type, field) (offsetof(type, field) + sizeof(type::field))

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& why) {
  throw BadRequest(fmt::format("{}: {}", file.string(), why));
}

void check_runtime(const std::filesystem::path& file, const tk_runtime& r) {
  if (r.struct_size < COVERS(tk_runtime, event_elapsed_us))
    refuse(file,
           fmt::format("its runtime table has {} bytes, expected at least {} (ABI version {})",
                       r.struct_size, COVERS(tk_runtime, event_elapsed_us), TK_ABI_VERSION));
  const bool complete = r.last_error && r.device_count && r.device_info && r.open && r.allocate &&
                        r.release && r.copy_in && r.copy_out && r.fill && r.stream_create &&
                        r.stream_destroy && r.synchronize;
  if (!complete) refuse(file, "its runtime table lacks a function that every runtime has to bring");
  const bool times = r.event_create && r.event_destroy && r.event_record && r.event_elapsed_us;
  if ((r.flags & TK_RUNTIME_TIMED) && !times)
    refuse(file, "its runtime says TIMED but lacks an event function");
  const bool graphs = r.capture_begin && r.capture_end && r.graph_launch && r.graph_destroy;
  if ((r.flags & TK_RUNTIME_GRAPHS) && !graphs)
    refuse(file, "its runtime says GRAPHS but lacks a graph function");
}

void check_table(const std::filesystem::path& file, const tk_plugin& p) {
  if (p.struct_size < COVERS(tk_plugin, abi_version) || p.abi_version != TK_ABI_VERSION)
    refuse(file, fmt::format("built for plugin ABI version {}, expected {}; build it against "
                             "kernels/include of this "
                             "release",
                             p.struct_size < COVERS(tk_plugin, abi_version) ? 0 : p.abi_version,
                             TK_ABI_VERSION));
  if (p.struct_size < COVERS(tk_plugin, op_count))
    refuse(file, fmt::format("its plugin table has {} bytes, expected at least {}", p.struct_size,
                             COVERS(tk_plugin, op_count)));
  if (!p.name || !*p.name) refuse(file, "its plugin table has no name");
  if (!p.runs_on && !p.runtime)
    refuse(file, "it has neither a runtime of its own nor a backend that it runs on");
  if (p.runs_on && p.runtime)
    refuse(file, "it has a runtime of its own and names a backend; expected one of them");
  if (p.runtime) check_runtime(file, *p.runtime);
  if (p.op_count && !p.ops) refuse(file, "it counts ops but has no list of them");
  for (uint32_t i = 0; i < p.op_count; ++i) {
    const tk_op* op = p.ops[i];
    if (!op || op->struct_size < COVERS(tk_op, run) || !op->name || !op->implementation ||
        !op->workspace || !op->run)
      refuse(file,
             fmt::format(
                 "its op {} is incomplete: expected name, implementation, workspace and run", i));
  }
}

}  // namespace

// A plugin stays loaded until the program ends: unloading a CUDA module while its static
// destructors are still due ends in a crash at exit.
Plugin::Plugin(const std::filesystem::path& file) : file_(file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) refuse(file, "no such file");
  // A path without a slash would be looked for in the system's library folders.
  const std::string path = std::filesystem::absolute(file).string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(file, fmt::format("cannot be loaded: {}", dlerror()));
  const auto query = reinterpret_cast<tk_plugin_query_function>(dlsym(library, "tk_plugin_query"));
  if (!query)
    refuse(file, "no kernel plugin: it does not export tk_plugin_query (see toolkit/plugin.h)");
  table_ = query(TK_ABI_VERSION);
  if (!table_)
    refuse(file, fmt::format("it does not serve a host of plugin ABI version {}", TK_ABI_VERSION));
  check_table(file, *table_);
}

std::vector<const tk_op*> Plugin::ops(std::string_view op) const {
  std::vector<const tk_op*> found;
  for (uint32_t i = 0; i < table_->op_count; ++i)
    if (table_->ops[i]->name == op) found.push_back(table_->ops[i]);
  return found;
}

std::vector<std::string> Plugin::op_names() const {
  std::set<std::string> names;
  for (uint32_t i = 0; i < table_->op_count; ++i) names.insert(table_->ops[i]->name);
  return {names.begin(), names.end()};
}

}  // namespace harness
