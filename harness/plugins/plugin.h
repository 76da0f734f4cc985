// SPDX-License-Identifier: Apache-2.0
// One kernel plugin: a shared object that was loaded and whose table was checked against the ABI.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "toolkit/plugin.h"

namespace harness {

class Plugin {
 public:
  // Loads and checks. Throws BadRequest that names the file, what was expected and what came.
  explicit Plugin(const std::filesystem::path& file);

  std::string_view name() const { return table_->name; }
  std::string_view version() const { return table_->version ? table_->version : ""; }
  // The backend whose pointers its ops take: its own name where it brings a runtime.
  std::string_view backend() const { return table_->runs_on ? table_->runs_on : table_->name; }
  const tk_runtime* runtime() const { return table_->runtime; }
  const std::filesystem::path& file() const { return file_; }
  std::vector<const tk_op*> ops(std::string_view op) const;  // implementations of one op
  std::vector<std::string> op_names() const;                 // sorted, each once

 private:
  std::filesystem::path file_;
  const tk_plugin* table_ = nullptr;
};

}  // namespace harness
