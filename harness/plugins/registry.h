// SPDX-License-Identifier: Apache-2.0
// All plugins of a run: the shipped ones beside the executable, loaded when first asked for, and
// those of --plugin.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plugins/plugin.h"

namespace harness {

struct Implementation {
  std::string label;  // "portable"; "mine/fast" where the plugin is not a shipped one
  const tk_op* op = nullptr;
};

class Registry {
 public:
  // `wave` chooses between kernels-simt.so (32) and kernels-simt-w64.so (64).
  explicit Registry(std::vector<std::filesystem::path> folders, int wave = 32);
  // The executable's own folder, then $TOOLKIT_PLUGIN_DIR.
  static std::vector<std::filesystem::path> default_folders();

  void add(const std::filesystem::path& file);  // --plugin; throws BadRequest

  // The runtime of a backend. Throws Absent with the reason, or BadRequest for a backend that
  // nobody knows.
  const tk_runtime& runtime(std::string_view backend);
  // Why a backend is absent; empty where it is present.
  std::string why_absent(std::string_view backend);
  std::vector<std::string> backends() const;  // GPUs first, then simt, then those of --plugin

  std::vector<Implementation> implementations(std::string_view backend, std::string_view op);
  const std::vector<std::unique_ptr<Plugin>>& added() const { return added_; }
  const Plugin* shipped(std::string_view backend);  // nullptr where absent

  // As implementations(), also where this machine has no device of the backend.
  std::vector<Implementation> built(std::string_view backend, std::string_view op);

 private:
  struct Entry {
    std::unique_ptr<Plugin> plugin;  // also where it finds no device
    std::string absent;              // why nothing can run on it, or empty
  };
  Entry& entry(std::string_view backend);
  std::vector<Implementation> of_added(std::string_view backend, std::string_view op) const;

  std::vector<std::filesystem::path> folders_;
  int wave_;
  std::map<std::string, Entry, std::less<>> shipped_;
  std::vector<std::unique_ptr<Plugin>> added_;
};

}  // namespace harness
