// SPDX-License-Identifier: Apache-2.0
// A shared array as a kernel sees it: every access by index is checked, and reported with the place
// of the access.
#pragma once

#include <concepts>
#include <string>

#include "lane.h"

namespace simt {

// An index that knows where in the source it was used as one.
struct Index {
  template <std::integral I>
  Index(I i, Site site = Site::current()) : value(static_cast<int64_t>(i)), site(site) {}
  int64_t value;
  Site site;
};

template <class T>
class SharedArray {
 public:
  SharedArray(void* data, size_t count, const char* name)
      : data_(static_cast<T*>(data)), count_(static_cast<int64_t>(count)), name_(name) {}

  T& operator[](Index i) const {
    if (static_cast<uint64_t>(i.value) >= static_cast<uint64_t>(count_)) [[unlikely]]
      out_of_bounds(i);
    return data_[i.value];
  }
  T* data() const { return data_; }

 private:
  [[noreturn]] __attribute__((noinline, cold)) void out_of_bounds(Index i) const {
    fail("index " + std::to_string(i.value) + " is outside the shared array '" + name_ + "' of " +
             std::to_string(count_) + " elements",
         i.site);
  }

  T* data_;
  int64_t count_;
  const char* name_;
};

template <class T>
SharedArray<T> static_shared_array(const void* key, const char* name, size_t count,
                                   Site site = Site::current()) {
  return {static_shared(key, name, count * sizeof(T), site), count, name};
}

template <class T>
SharedArray<T> dynamic_shared_array(const char* name) {
  size_t bytes = 0;
  void* data = dynamic_shared(&bytes);
  return {data, bytes / sizeof(T), name};
}

}  // namespace simt
