// SPDX-License-Identifier: Apache-2.0
// How a kernel source offers an op to its backend's plugin table. Host code.
//
//   struct Expand {
//     static constexpr const toolkit::Contract& contract = qsa::expand::contract;
//     static constexpr const char* implementation = "portable";
//     static uint64_t workspace(const toolkit::Args&);   // bytes; throws device::Unsupported("because ...")
//     static void run(const device::OpCall&);            // enqueues, never waits; throws what launch throws
//   };
//   DEVICE_OP(Expand)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/planning.h"
#include "toolkit/args.h"
#include "toolkit/plugin.h"

namespace device {

// "Unsupported, because ...": the op is right to refuse, another implementation may serve.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct OpCall {
  toolkit::Args args;  // checked against the contract, outputs included
  void* stream;
  std::byte* workspace;
  uint64_t workspace_bytes;
  bool capturing;

  toolkit::TensorView tensor(std::string_view name) const { return args.tensor(name); }
};

// Hands out aligned pieces of the workspace. With a null base it only counts: run it in workspace() too, so that the
// query and the run cannot disagree.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(uint64_t count) {
    const uint64_t at = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return base_ ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

std::vector<const tk_op*>& op_table();  // of this backend, in kernels/device/plugin.cpp

inline void put_message(const tk_call* call, const std::string& text) {
  if (call->message && call->message_bytes)
    std::snprintf(call->message, call->message_bytes, "%s", text.c_str());
}

// Runs `body` and turns what it throws into a status and a message: nothing throws across the C ABI.
template <class Body>
tk_status guarded(const tk_call* call, Body&& body) {
  try {
    body();
    return TK_OK;
  } catch (const Unsupported& e) {
    put_message(call, e.what());
    return TK_UNSUPPORTED;
  } catch (const toolkit::Violation& e) {
    put_message(call, e.what());
    return TK_INVALID;
  } catch (const std::bad_alloc&) {
    put_message(call, "out of memory");
    return TK_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    put_message(call, e.what());
    return TK_ERROR;
  }
}

template <class Op>
tk_status workspace_entry(const tk_call* call, uint64_t* bytes) {
  return guarded(call, [&] {
    const toolkit::Args args(Op::contract, *call);
    args.check(true);
    *bytes = Op::workspace(args);
  });
}

template <class Op>
tk_status run_entry(const tk_call* call) {
  return guarded(call, [&] {
    const toolkit::Args args(Op::contract, *call);
    args.check(true);
    const uint64_t need = Op::workspace(args);
    if (call->workspace_bytes < need)
      throw toolkit::Violation(Op::contract.op, "workspace", std::to_string(need) + " bytes",
                               std::to_string(call->workspace_bytes));
    Op::run(OpCall{args, call->stream, static_cast<std::byte*>(call->workspace), call->workspace_bytes,
                   (call->flags & TK_CALL_CAPTURING) != 0});
  });
}

// `run` on a device that need not be here: the workspace is an address that nothing is read from.
template <class Op>
tk_status plan_entry(const tk_call* call, const tk_device_info* device,
                     void (*launched)(void*, const tk_launch*), void* user) {
  return guarded(call, [&] {
    const Planning planning{device, launched, user};
    const PlanningScope scope(planning);
    const toolkit::Args args(Op::contract, *call);
    args.check(true);
    Op::run(OpCall{args, nullptr, reinterpret_cast<std::byte*>(uintptr_t{256}),
                   Op::workspace(args), true});
  });
}

template <class Op>
class OpRegistration {
 public:
  OpRegistration() {
    static const std::string name(Op::contract.op);
    static const tk_op op{sizeof(tk_op),      0, name.c_str(), Op::implementation, workspace_entry<Op>,
                          run_entry<Op>,      plan_entry<Op>};
    op_table().push_back(&op);
  }
};

}  // namespace device

#define DEVICE_OP(Op)                        \
  namespace {                                \
  const ::device::OpRegistration<Op> registered_##Op; \
  }
