// SPDX-License-Identifier: Apache-2.0
// A stack that can be switched to, and what the sanitizers want to know about it. Used by the
// executor only. Switching is by 20 lines of assembly on x86-64, by Boost.Context elsewhere or
// where SIMT_BOOST is defined.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(SIMT_BOOST)
#define SIMT_BOOST
#endif

namespace simt {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;  // its stack holds its address
  ~Fiber();

  // Makes this the fiber of the thread that calls: something to switch away from and back to.
  void adopt_thread();
  // Gives it a stack. The first switch to it calls entry(argument), which must not return. `name`:
  // in race reports.
  void start(void* stack_low, size_t stack_bytes, void (*entry)(void*), void* argument,
             const char* name);
  // Leaves `this`, which is running, for `to`. Returns when somebody switches back.
  void switch_to(Fiber& to);

 private:
  static void begin(Fiber* self);
#ifdef SIMT_BOOST
  struct Boost;
#endif

  void* saved_ = nullptr;  // stack pointer while it does not run
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  const void* stack_low_ = nullptr;
  size_t stack_bytes_ = 0;
  // For the sanitizers. Who switched here is kept in the fiber and not in a thread_local: between
  // two blocks a fiber may move to another thread, and a compiler computes the address of a
  // thread_local once a function.
  [[maybe_unused]] Fiber* came_from_ = nullptr;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] bool owns_tsan_fiber_ = false;
};

}  // namespace simt
