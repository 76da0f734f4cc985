// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/machine.h"

#include <sys/utsname.h>

#include <fstream>

namespace harness {

std::string host_cpu() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown CPU";
}

std::string host_arch() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

std::string host_system() {
  utsname name{};
  return uname(&name) == 0 ? std::string(name.sysname) + " " + name.release : "unknown";
}

std::string host_compiler() {
#if defined(__clang__)
  return "clang++ " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace harness
