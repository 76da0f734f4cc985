// SPDX-License-Identifier: Apache-2.0
// A report's file: opened early, written whole lines at a time.
#pragma once

#include <string>
#include <string_view>

namespace harness {

class OutputFile {
 public:
  enum class Mode { append, replace };  // replace: emptied by the first write, not before
  OutputFile(const std::string& path, Mode mode);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;  // owns the descriptor
  OutputFile& operator=(const OutputFile&) = delete;
  // Writes all of it in one go where the system lets us, so that no row is left half written.
  // Throws BadRequest where that fails (a full disk), and from then on: a shorter row that would still fit, such as the
  // one that tells of the failure, would stand in a file that lacks the row before it.
  void write(std::string_view text);
  bool fresh() const { return fresh_; }  // standard output, a new or an empty file

 private:
  std::string path_;
  Mode mode_;
  int descriptor_ = -1;
  bool fresh_ = true;
  std::string failed_;  // why, once a write has failed
};

}  // namespace harness
