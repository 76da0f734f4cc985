// SPDX-License-Identifier: Apache-2.0
// Which sanitizer the executor is built for. ThreadSanitizer is told by SIMT_TSAN, because the
// executor itself must be compiled without -fsanitize=thread: instrumented, it would report its own
// bookkeeping.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

// A point that orders memory: what was done before a release is seen after a later acquire.
class SyncPoint {
 public:
  void release() {
#ifdef SIMT_TSAN
    __tsan_release(this);
#endif
  }
  void acquire() {
#ifdef SIMT_TSAN
    __tsan_acquire(this);
#endif
  }

 private:
  [[maybe_unused]] char address_ = 0;
};

inline void poison(void* p, size_t bytes) {
#ifdef SIMT_ASAN
  __asan_poison_memory_region(p, bytes);
#else
  (void)p, (void)bytes;
#endif
}
inline void unpoison(void* p, size_t bytes) {
#ifdef SIMT_ASAN
  __asan_unpoison_memory_region(p, bytes);
#else
  (void)p, (void)bytes;
#endif
}

}  // namespace simt
