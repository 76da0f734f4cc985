// SPDX-License-Identifier: Apache-2.0
// A case: one call of one op with its inputs in host memory, made by a generator or read from a dump.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/tensors/tensor.h"

namespace harness {

struct Case {
  std::string op;      // "qsa.expand"
  std::string id;      // "qsa.expand/decode:rows=4,ctx=8192" or the dump's file name
  std::string preset;  // of datasets/presets, or empty
  std::string shape;   // a short human text, e.g. "R=64 Hq=24 Hkv=2 D=256 T=2051"
  uint64_t seed = 0;
  TensorMap inputs;    // inputs and in_place tensors by contract name
  TensorMap expected;  // truth that came with a dump, by output name
  TensorMap actual;    // results that came with a dump, to be judged instead of running a kernel
  ScalarMap scalars;
  std::vector<std::string> notes;  // of the loader: unused keys and the like
};

// A case as the tk_call that Args and the oracles read: pointers into the case's host tensors, which must outlive it.
class HostCall {
 public:
  explicit HostCall(const Case& c);                          // inputs only
  HostCall(const Case& c, const TensorMap& outputs);         // inputs and outputs
  HostCall(const Case& c, TensorMap&& outputs) = delete;     // it would point into what is gone
  HostCall(const HostCall&) = delete;                        // call() points into this object
  HostCall& operator=(const HostCall&) = delete;
  const tk_call& call() const { return call_; }

 private:
  void add(const std::string& name, const Tensor& t);
  std::vector<std::unique_ptr<tk_tensor>> tensors_;
  std::vector<std::unique_ptr<tk_scalar>> scalars_;
  std::vector<const tk_tensor*> tensor_pointers_;
  std::vector<const tk_scalar*> scalar_pointers_;
  tk_call call_{};
};

}  // namespace harness
