// SPDX-License-Identifier: Apache-2.0
// The memory of this host, asked for before it is used: a system that promises more than it has would end the process
// in the middle of a case.
#pragma once

#include <cstdint>
#include <new>
#include <string>

namespace harness {

// "needs 37.3 GiB of 31 GiB of this host's memory"
class HostMemory : public std::bad_alloc {
 public:
  HostMemory(uint64_t needs, uint64_t has);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// What this process may use: memory and swap of the machine, or its control group's or address space's limit.
uint64_t host_memory_bytes();

// Counts bytes that tensors are about to take, on top of those that they hold. Throws HostMemory where that is more
// than there is.
void take_host_memory(uint64_t bytes);
void give_host_memory(uint64_t bytes);

}  // namespace harness
