// SPDX-License-Identifier: Apache-2.0
#include "harness/run/isolate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "harness/plugins/errors.h"

extern char** environ;

namespace harness {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 50;           // how late the end of a child may be seen
constexpr size_t kMostSaid = 500;     // of a child's last line
constexpr int kFirstDescriptor = 10;  // above those that a child's 0 ... 3 are made from

std::atomic<pid_t> running{0};

[[noreturn]] void fail(const char* what) {
  throw DeviceError(fmt::format("--isolate: {}: {}", what, std::strerror(errno)));
}

class Descriptor {
 public:
  // Takes `fd` over, out of the way of the numbers that the child uses.
  explicit Descriptor(int fd) : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstDescriptor)) {
    ::close(fd);
    if (fd_ < 0) fail("no descriptor");
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read, write;
  static Pipe make() {
    int ends[2];
    if (::pipe(ends) != 0) fail("no pipe");
    Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
    ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
    return pipe;
  }
};

Descriptor file_of(const std::string& text) {
  Descriptor file(::memfd_create("case", 0));
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(file.get(), text.data() + at, text.size() - at);
    if (n < 0) fail("no memory file");
    at += n;
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

// Cuts what comes through a pipe into lines.
class Lines {
 public:
  explicit Lines(Descriptor from) : from_(std::move(from)) {}
  int descriptor() const { return from_.get(); }  // -1 at its end
  bool read(const std::function<void(const std::string&)>& on_line) {
    char buffer[4096];
    bool any = false;
    while (from_.get() >= 0) {
      const ssize_t n = ::read(from_.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) break;  // nothing there now
      if (n == 0) {
        from_.close();
        break;
      }
      any = true;
      for (const char c : std::string_view(buffer, n)) {
        if (c != '\n') {
          part_ += c;
          continue;
        }
        on_line(part_);
        part_.clear();
      }
    }
    return any;
  }
  const std::string& part() const { return part_; }

 private:
  Descriptor from_;
  std::string part_;
};

pid_t spawn(const std::vector<std::string>& arguments, int in, int lines, int print) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, print, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, print, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&files, lines, kChildLines);
  posix_spawnattr_t how;
  posix_spawnattr_init(&how);
  // Its own group: an interrupt from the terminal is ours to handle, and the child's own children
  // die with it.
  posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&how, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&how, &none);
  std::vector<char*> words;
  for (const auto& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t pid = 0;
  errno = ::posix_spawn(&pid, "/proc/self/exe", &files, &how, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&how);
  if (errno != 0) fail("cannot start this program again");
  return pid;
}

}  // namespace

bool ChildEnd::crashed() const { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

std::string ChildEnd::how() const {
  std::string text =
      WIFSIGNALED(status)
          ? fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
          : fmt::format(
                "the process ended with exit code {} in the middle of the "
                "case",
                WEXITSTATUS(status));
  return said.empty() ? text : text + ": " + said;
}

ChildEnd run_child(const std::vector<std::string>& arguments, const std::string& input,
                   double limit_s, const std::function<void(const std::string&)>& on_line) {
  Descriptor in = file_of(input);
  Pipe result = Pipe::make(), print = Pipe::make();
  const pid_t pid = spawn(arguments, in.get(), result.write.get(), print.write.get());
  running = pid;
  result.write.close();
  print.write.close();
  Lines lines(std::move(result.read)), printed(std::move(print.read));
  ChildEnd end;
  const auto keep = [&](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
    if (!line.empty()) end.said = line.substr(0, kMostSaid);
  };
  const auto limit = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(limit_s > 0 ? limit_s : 0));
  auto due = Clock::now() + limit;
  for (bool ended = false; !ended;) {
    pollfd ready[] = {{lines.descriptor(), POLLIN, 0}, {printed.descriptor(), POLLIN, 0}};
    ::poll(ready, 2, kTickMs);
    // Ended before the last look into the pipes, so that nothing is left there. A grandchild may
    // hold them open: their end is not what is waited for.
    ended = ::waitpid(pid, &end.status, WNOHANG) == pid;
    printed.read(keep);
    if (lines.read(on_line)) due = Clock::now() + limit;
    if (!ended && limit_s > 0 && Clock::now() >= due) {
      end.timed_out = true;
      ::kill(-pid, SIGKILL);
      due = Clock::now() + limit;
    }
  }
  running = 0;
  ::kill(-pid, SIGKILL);  // what it started and left
  if (!printed.part().empty()) keep(printed.part());
  return end;
}

void kill_child() {
  if (const pid_t pid = running) ::kill(-pid, SIGKILL);
}

void die_with_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == 1) ::_exit(1);
}

}  // namespace harness
