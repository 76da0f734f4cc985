// SPDX-License-Identifier: Apache-2.0
#include "harness/report/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

bool regular(int descriptor, struct stat& info) {
  return ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

// Of several programs that append to one file. (Where a file system has no locks, all goes on without.)
class OutputFile::Lock {
 public:
  explicit Lock(int descriptor) : descriptor_(descriptor) { ::flock(descriptor_, LOCK_EX); }
  ~Lock() { ::flock(descriptor_, LOCK_UN); }
  Lock(const Lock&) = delete;  // unlocks once
  Lock& operator=(const Lock&) = delete;

 private:
  int descriptor_;
};

OutputFile::OutputFile(const std::string& path, Mode mode) : path_(path), mode_(mode) {
  if (path == "-") {
    descriptor_ = STDOUT_FILENO;
    return;
  }
  made_ = ::access(path.c_str(), F_OK) != 0;
  descriptor_ = ::open(
      path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::append ? O_APPEND : 0), 0644);
  if (descriptor_ < 0)
    throw BadRequest(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

OutputFile::~OutputFile() {
  if (descriptor_ > STDERR_FILENO) ::close(descriptor_);
}

void OutputFile::write_all(int descriptor, std::string_view text) {
  struct stat before {};
  const bool file = regular(descriptor, before);
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int why = errno;
      // A disk that fills up in the middle of a row: what is there of it goes.
      const bool cut = mode_ == Mode::append && file && ::ftruncate(descriptor, before.st_size) != 0;
      failed_ = fmt::format("{}: {}: {}", path_,
                            cut ? "ends in the middle of a line" : "cannot be written", std::strerror(why));
      throw BadRequest(failed_);
    }
    text.remove_prefix(n);
  }
}

// A document is written beside the old one and takes its name once it is whole. False where that
// cannot be: a pipe or a device, or a folder that takes no new file.
bool OutputFile::replace_whole(std::string_view text) {
  struct stat old {};
  if (descriptor_ <= STDERR_FILENO || !regular(descriptor_, old)) return false;
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path_, error);  // not the link to it
  if (error) return false;
  const std::string part = fmt::format("{}.{}.part", real.string(), ::getpid());
  const int fresh = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fresh < 0) return false;
  ::fchmod(fresh, old.st_mode & 07777);
  try {
    write_all(fresh, text);
  } catch (const BadRequest&) {  // failed_ says why
  }
  if ((::close(fresh) != 0 || (failed_.empty() && ::rename(part.c_str(), real.c_str()) != 0)) &&
      failed_.empty())
    failed_ = fmt::format("{}: cannot be written: {}", path_, std::strerror(errno));
  if (!failed_.empty()) {
    ::unlink(part.c_str());
    if (made_) ::unlink(real.c_str());
    throw BadRequest(failed_);
  }
  ::close(descriptor_);
  descriptor_ = ::open(real.c_str(), O_WRONLY | O_CLOEXEC);
  made_ = false;
  return true;
}

void OutputFile::write(std::string_view text) {
  if (!failed_.empty()) throw BadRequest(failed_);
  if (mode_ == Mode::append) {
    const Lock lock(descriptor_);
    return write_all(descriptor_, text);
  }
  if (replace_whole(text)) return;
  // A pipe or a device cannot be emptied, and need not be.
  if (descriptor_ > STDERR_FILENO && ::ftruncate(descriptor_, 0) == 0)
    ::lseek(descriptor_, 0, SEEK_SET);
  write_all(descriptor_, text);
}

bool OutputFile::begin(std::string_view first_line) {
  const Lock lock(descriptor_);
  struct stat now {};
  if (path_ != "-" && ::fstat(descriptor_, &now) == 0 && now.st_size > 0) return false;
  write_all(descriptor_, first_line);
  return true;
}

void OutputFile::drop(std::string_view line) {
  const Lock lock(descriptor_);
  std::stringstream all;
  all << std::ifstream(path_, std::ios::binary).rdbuf();
  const std::string text = all.str();
  const size_t at = text.find("\n" + std::string(line));
  if (at == std::string::npos) return;  // quoted in another way by hand: it stays
  // Not through the descriptor, which appends.
  const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  const std::string rest = text.substr(at + 1 + line.size());
  const ssize_t n = ::pwrite(file, rest.data(), rest.size(), static_cast<off_t>(at + 1));
  if (n == static_cast<ssize_t>(rest.size()) &&
      ::ftruncate(file, static_cast<off_t>(at + 1 + rest.size())) != 0)
    failed_ = fmt::format("{}: cannot be cut: {}", path_, std::strerror(errno));
  ::close(file);
}

}  // namespace harness
