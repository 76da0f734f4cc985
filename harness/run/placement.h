// SPDX-License-Identifier: Apache-2.0
// The tensors of one case on one device: every piece of storage once, between guard bands, views
// keeping what they share (K|V halves, stride 0); outputs poisoned; the workspace full of NaN.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/ops/card.h"
#include "harness/run/guarded.h"
#include "harness/tensors/case.h"

namespace harness {

// The bytes [first, last) of its storage that a tensor with elements touches.
std::pair<int64_t, int64_t> extent(const Tensor& t);

class Placement {
 public:
  // `made` must outlive it. Throws DeviceError; toolkit::Violation where the case breaks the
  // contract.
  Placement(const Device& device, const Card& card, const Case& made);
  Placement(const Placement&) = delete;  // the call points into it
  Placement& operator=(const Placement&) = delete;

  tk_call& call() {
    return call_;
  }  // of device pointers; the caller sets stream, flags and message
  void give_workspace(uint64_t bytes);
  void reset() const;             // all as before the first run
  TensorMap results() const;      // outputs and in_place tensors, in host memory
  uint64_t result_bytes() const;  // of the elements that they have
  // Writes that the contract forbids, one line each: "wrote 4 bytes behind its last byte of
  // 'output'".
  std::vector<std::string> trespasses() const;
  uint64_t device_bytes() const;

 private:
  enum class Use : uint8_t { input, in_place, output };
  struct Member {
    std::string name;
    const Tensor* host;
    Use use;
  };
  struct Region {  // bytes [first, last) of one storage
    const Storage* storage;
    int64_t first, last;
    std::vector<Member> members;
    std::unique_ptr<GuardedMemory> memory;
    std::string names() const;
  };
  void place(std::vector<Region> pieces);
  std::string changed_input(const Region& region) const;

  const Device& device_;
  TensorMap poisoned_;  // the outputs before the run
  std::vector<Region> regions_;
  std::unique_ptr<GuardedMemory> workspace_;
  std::optional<HostCall> host_;
  std::vector<tk_tensor> tensors_;
  std::vector<const tk_tensor*> pointers_;
  tk_call call_{};
};

}  // namespace harness
