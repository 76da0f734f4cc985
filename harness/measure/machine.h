// SPDX-License-Identifier: Apache-2.0
// What the host calls itself, for the rows of work that runs on it.
#pragma once

#include <string>

namespace harness {

std::string host_cpu();       // "AMD EPYC 9354 32-Core Processor"
std::string host_arch();      // "x86_64"
std::string host_system();    // "Linux 6.1.0-18-amd64"
std::string host_compiler();  // "g++ 12.2.0"

}  // namespace harness
