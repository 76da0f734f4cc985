// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>
#include <fstream>

namespace harness {

namespace {

std::atomic<uint64_t> held{0};

uint64_t limit_of_this_process() {
  struct sysinfo machine {};
  uint64_t least = UINT64_MAX;
  if (sysinfo(&machine) == 0) least = (machine.totalram + machine.totalswap) * machine.mem_unit;
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t bytes = 0;
    if (std::ifstream(file) >> bytes) least = std::min(least, bytes);  // not "max"
  }
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    least = std::min<uint64_t>(least, space.rlim_cur);
  return least;
}

}  // namespace

HostMemory::HostMemory(uint64_t needs, uint64_t has) {
  constexpr double kGiB = 1 << 30;
  text_ = fmt::format("needs {:.3g} GiB of {:.3g} GiB of this host's memory",
                      static_cast<double>(needs) / kGiB, static_cast<double>(has) / kGiB);
}

uint64_t host_memory_bytes() {
  static const uint64_t bytes = limit_of_this_process();
  return bytes;
}

void take_host_memory(uint64_t bytes) {
  const uint64_t before = held.fetch_add(bytes), has = host_memory_bytes();
  if (bytes <= has && before <= has - bytes) return;
  held -= bytes;
  throw HostMemory(bytes > UINT64_MAX - before ? bytes : before + bytes, has);
}

void give_host_memory(uint64_t bytes) { held -= bytes; }

}  // namespace harness
