// SPDX-License-Identifier: Apache-2.0
// Measures the roofs of a device with the probes of the family `roof` (kernels/roof): stream read,
// the runtime's own copy, stream copy, gather of 256 B to 4 KB segments, reads from the L2, matrix
// products, launches. Each probe is launched in a few widths; the fastest is the roof. What a probe
// gives is checked by sums and products that the host knows.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/measure/kernel_timer.h"
#include "harness/measure/sampling.h"
#include "harness/ops/card.h"
#include "harness/plugins/device.h"

namespace harness {

constexpr bool is_probe(std::string_view op) { return op.starts_with("roof."); }

// A call of device pointers, put together by hand.
class ProbeCall {
 public:
  explicit ProbeCall(std::string op) : op_(std::move(op)) {}
  ProbeCall(const ProbeCall&) = delete;  // the call points into it
  ProbeCall& operator=(const ProbeCall&) = delete;
  void tensor(const char* name, tk_dtype dtype, std::vector<int64_t> shape, void* data);
  void scalar(const char* name, int64_t value);
  tk_call& call();

 private:
  struct TensorRoom {
    std::vector<int64_t> shape, strides;
    tk_tensor tensor;
  };
  struct ScalarRoom {
    std::string text;
    tk_scalar scalar;
  };
  const std::string op_;
  std::list<TensorRoom> tensors_;
  std::list<ScalarRoom> scalars_;
  std::vector<const tk_tensor*> tensor_pointers_;
  std::vector<const tk_scalar*> scalar_pointers_;
  tk_call call_{};
};

// One probe in the widths that are tried.
struct Probe {
  std::string op, id, shape;  // "roof.gather", "roof.gather/512", "1 GiB in segments of 512 B"
  tk_dtype dtype = 0;
  Implementation implementation;
  Cost cost;
  Cache cache = Cache::cold;
  // A runtime's copy is one thing on a stream and may be another, slower one in a graph (H200, from
  // 512 MiB on: 4210 and 2700 GB/s), so that it is never replayed.
  bool by_stream = false;
  struct Width {
    std::string text;  // "528 blocks, 4 in flight"
    std::unique_ptr<ProbeCall> call;
    double flops = 0;  // where they depend on the width
  };
  std::vector<Width> widths;
  // Poisons what a width writes; then, after a run, what is wrong with it (empty: nothing).
  std::function<void(const Width&)> poison;
  std::function<std::string(const Width&)> check;
};

struct Roof {
  const Probe* probe = nullptr;
  std::string width;
  Cost cost;
  Summary time;
  uint64_t flushed = 0;
  Launch launch = Launch::graph;
  std::string wrong;  // empty where it gave what it had to
};

// The probes of a device and the memory that they use: twice `bytes` (a power of two) and what the
// ids take. Empty where the backend has no probes.
class ProbeSet {
 public:
  using Find = std::function<std::vector<Implementation>(std::string_view op)>;
  ProbeSet(const Device& device, const Find& find, uint64_t bytes);
  ~ProbeSet();
  ProbeSet(const ProbeSet&) = delete;  // probes point into its memory
  ProbeSet& operator=(const ProbeSet&) = delete;
  const std::vector<Probe>& probes() const { return probes_; }
  // Times all widths, the fastest of them until it is sure, and checks its result. `launch` is
  // what the caller wants; a probe may be by_stream.
  Roof measure(const Probe& probe, Launch launch, const SamplingRules& rules) const;

 private:
  struct Memory;
  void add_reads(const Find& find);
  void add_copies(const Find& find);
  void add_gathers(const Find& find);
  void add_products(const Find& find);
  void add_launches(const Find& find);
  Probe* add(const Find& find, const std::string& op, const std::string& name, std::string shape);
  std::vector<int> block_counts(std::initializer_list<int> per_multiprocessor) const;
  std::string check_copy() const;
  std::string check_sum(int64_t blocks, uint32_t expected) const;

  const Device& device_;
  std::unique_ptr<Memory> memory_;
  std::vector<Probe> probes_;
};

// How large the streams of a device are: 1 GiB, less on a small one.
uint64_t probe_bytes(const Device& device);
}  // namespace harness
