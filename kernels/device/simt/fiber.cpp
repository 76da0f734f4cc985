// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <cstdint>

#include "sanitizers.h"

#ifdef SIMT_BOOST
#include <boost/context/detail/fcontext.hpp>
#endif

namespace simt {

Fiber::~Fiber() {
#ifdef SIMT_TSAN
  if (owns_tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void Fiber::adopt_thread() {
#ifdef SIMT_TSAN
  tsan_fiber_ = __tsan_get_current_fiber();
#endif
}

#ifdef SIMT_BOOST

struct Fiber::Boost {
  struct Switch {
    Fiber *from, *to;
  };
  static void entry(boost::context::detail::transfer_t t) {
    const Switch s = *static_cast<Switch*>(t.data);
    s.from->saved_ = t.fctx;
    begin(s.to);
  }
  static void jump(Fiber& from, Fiber& to) {
    Switch s{&from, &to};
    const auto t = boost::context::detail::jump_fcontext(to.saved_, &s);
    static_cast<Switch*>(t.data)->from->saved_ = t.fctx;
  }
};

#else

// Saves the callee-saved registers of the System V ABI on the old stack and loads them from the new
// one. The floating point control words are left alone: kernels do not change them, and saving them
// costs more than all the rest.
extern "C" void simt_switch_stack(void** save, void* load);
extern "C" void simt_first_entry();
asm(R"(
  .text
  .p2align 4
  .local simt_switch_stack
  .type simt_switch_stack, @function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size simt_switch_stack, . - simt_switch_stack
  .p2align 4
  .local simt_first_entry
  .type simt_first_entry, @function
simt_first_entry:
  .cfi_startproc
  .cfi_undefined rip
  movq %r12, %rdi
  callq *%r13
  ud2
  .cfi_endproc
  .size simt_first_entry, . - simt_first_entry
)");

#endif

void Fiber::start(void* stack_low, size_t stack_bytes, void (*entry)(void*), void* argument,
                  [[maybe_unused]] const char* name) {
  stack_low_ = stack_low;
  stack_bytes_ = stack_bytes;
  entry_ = entry;
  argument_ = argument;
#ifdef SIMT_TSAN
  tsan_fiber_ = __tsan_create_fiber(0);
  owns_tsan_fiber_ = true;
  __tsan_set_fiber_name(tsan_fiber_, name);
#endif
  char* top = static_cast<char*>(stack_low) + stack_bytes;
#ifdef SIMT_BOOST
  saved_ = boost::context::detail::make_fcontext(top, stack_bytes, Boost::entry);
#else
  void** p = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--p = nullptr;  // the stack is 16-byte aligned where simt_first_entry calls
  *--p = nullptr;
  *--p = reinterpret_cast<void*>(simt_first_entry);
  *--p = nullptr;                                 // rbp: ends the chain of frames
  *--p = nullptr;                                 // rbx
  *--p = this;                                    // r12
  *--p = reinterpret_cast<void*>(&Fiber::begin);  // r13
  *--p = nullptr;                                 // r14
  *--p = nullptr;                                 // r15
  saved_ = p;
#endif
}

// AddressSanitizer hears of a switch from both sides. What it tells the new side about the old
// stack is how the stack of a thread, which nobody made here, becomes known.
void Fiber::begin(Fiber* self) {
#ifdef SIMT_ASAN
  Fiber* const from = self->came_from_;
  __sanitizer_finish_switch_fiber(nullptr, &from->stack_low_, &from->stack_bytes_);
#endif
  self->entry_(self->argument_);
  __builtin_trap();
}

void Fiber::switch_to(Fiber& to) {
#ifdef SIMT_ASAN
  to.came_from_ = this;
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_low_, to.stack_bytes_);
#endif
#ifdef SIMT_TSAN
  __tsan_switch_to_fiber(to.tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef SIMT_BOOST
  Boost::jump(*this, to);
#else
  simt_switch_stack(&saved_, to.saved_);
#endif
#ifdef SIMT_ASAN
  Fiber* const from = came_from_;
  __sanitizer_finish_switch_fiber(fake_stack_, &from->stack_low_, &from->stack_bytes_);
#endif
}

}  // namespace simt
