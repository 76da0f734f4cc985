// SPDX-License-Identifier: Apache-2.0
// A report's file: opened early, written whole lines at a time.
#pragma once

#include <string>
#include <string_view>

namespace harness {

class OutputFile {
 public:
  // append: rows. replace: a document; the old one stays until a whole new one is written.
  enum class Mode { append, replace };
  OutputFile(const std::string& path, Mode mode);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;  // owns the descriptor
  OutputFile& operator=(const OutputFile&) = delete;
  // Writes all of it in one go where the system lets us, so that no row is left half written.
  // Throws BadRequest where that fails (a full disk), and from then on: a shorter row that would still fit, such as the
  // one that tells of the failure, would stand in a file that lacks the row before it.
  void write(std::string_view text);
  // Writes the first line of a new or an empty file, one line also where several programs begin the
  // file at once; false where the file has lines.
  bool begin(std::string_view first_line);
  // Takes out a line that is in the file, for a row of it that is written anew.
  void drop(std::string_view line);

 private:
  class Lock;
  void write_all(int descriptor, std::string_view text);
  bool replace_whole(std::string_view text);

  std::string path_;
  Mode mode_;
  int descriptor_ = -1;
  bool made_ = false;   // by us: an empty file that goes again where nothing could be written
  std::string failed_;  // why, once a write has failed
};

}  // namespace harness
