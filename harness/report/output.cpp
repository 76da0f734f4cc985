// SPDX-License-Identifier: Apache-2.0
#include "harness/report/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "harness/plugins/errors.h"

namespace harness {

OutputFile::OutputFile(const std::string& path, Mode mode) : path_(path), mode_(mode) {
  if (path == "-") {
    descriptor_ = STDOUT_FILENO;
    return;
  }
  descriptor_ = ::open(
      path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::append ? O_APPEND : 0), 0644);
  if (descriptor_ < 0)
    throw BadRequest(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  struct stat info {};
  fresh_ = ::fstat(descriptor_, &info) != 0 || info.st_size == 0;
}

OutputFile::~OutputFile() {
  if (descriptor_ > STDERR_FILENO) ::close(descriptor_);
}

void OutputFile::write(std::string_view text) {
  if (!failed_.empty()) throw BadRequest(failed_);
  if (mode_ == Mode::replace && descriptor_ > STDERR_FILENO) {
    // A pipe or a device cannot be emptied, and need not be.
    if (::ftruncate(descriptor_, 0) == 0) ::lseek(descriptor_, 0, SEEK_SET);
  }
  struct stat before {};
  const bool file = ::fstat(descriptor_, &before) == 0 && S_ISREG(before.st_mode);
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int why = errno;
      // A disk that fills up in the middle of a row: what is there of it goes.
      const bool cut = mode_ == Mode::append && file && ::ftruncate(descriptor_, before.st_size) != 0;
      failed_ = fmt::format("{}: {}: {}", path_,
                            cut ? "ends in the middle of a line" : "cannot be written", std::strerror(why));
      throw BadRequest(failed_);
    }
    text.remove_prefix(n);
  }
}

}  // namespace harness
