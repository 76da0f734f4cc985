// SPDX-License-Identifier: Apache-2.0
#include "harness/dumps/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "harness/dumps/bad_file.h"

namespace harness {

namespace {
struct Descriptor {  // closed on every way out
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};
}  // namespace

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw BadFile(path, "open", "a readable file", std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    throw BadFile(path, "stat", "a readable file", std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    throw BadFile(path, "open", "a regular file",
                  S_ISDIR(status.st_mode) ? "a directory" : "another kind of file");
  const size_t bytes = size_t(status.st_size);
  void* data = nullptr;
  if (bytes > 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (data == MAP_FAILED)
      throw BadFile(path, "map", "a file that can be mapped into memory", std::strerror(errno));
  }
  return std::shared_ptr<MappedFile>(new MappedFile(static_cast<std::byte*>(data), bytes));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace harness
