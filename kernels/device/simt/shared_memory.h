// SPDX-License-Identifier: Apache-2.0
// The shared memory of a block: 0xff (NaN) when the block starts, with red zones around each array.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace simt {

class SharedMemory {
 public:
  // Forgets the arrays of the block before.
  void begin_block(size_t dynamic_bytes);
  // The static array of that declaration. Null: there is no room left.
  void* claim(const void* key, const char* name, size_t bytes);
  std::byte* dynamic() const { return arrays_[0].data; }
  size_t dynamic_bytes() const { return arrays_[0].bytes; }
  size_t static_bytes() const { return static_bytes_; }
  bool contains(const void* p, size_t bytes) const;
  // The name of an array past whose end, or before whose start, somebody wrote through a raw
  // pointer; empty: none.
  std::string damaged() const;

 private:
  struct Array {
    const void* key;
    const char* name;
    std::byte* data;
    size_t bytes;
  };
  struct Unmap {
    void operator()(std::byte* p) const;
  };
  std::byte* place(const void* key, const char* name, size_t bytes);

  std::unique_ptr<std::byte, Unmap> arena_;
  std::byte* next_ = nullptr;
  std::vector<Array> arrays_;  // the first is the dynamic one
  size_t static_bytes_ = 0;
};

}  // namespace simt
