// SPDX-License-Identifier: Apache-2.0
#include "harness/run/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

namespace harness {

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
int write_end = -1;
struct sigaction before[std::size(kSignals)];

// A handler, not a blocked signal and sigwait: threads of a backend may not block it.
void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t n = ::write(write_end, &byte, 1);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(std::function<int(int)> give_up) : give_up_(std::move(give_up)) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error(std::string("no pipe for signals: ") + std::strerror(errno));
  read_ = ends[0];
  write_end = ends[1];
  thread_ = std::thread([this] {
    unsigned char signal = 0;
    ssize_t n = 0;
    while ((n = ::read(read_, &signal, 1)) < 0 && errno == EINTR) {
    }
    if (n == 1 && signal != 0) ::_exit(give_up_(signal));
  });
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // lanes of simt have small stacks
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &before[i]);
    // Whoever started us with `nohup` or in the background wants it ignored.
    if (before[i].sa_handler == SIG_IGN) ::sigaction(kSignals[i], &before[i], nullptr);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
  on_signal(0);
  thread_.join();
  ::close(read_);
  ::close(write_end);
}

}  // namespace harness
