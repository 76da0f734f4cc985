// SPDX-License-Identifier: Apache-2.0
// Times one implementation by device events: replay of a captured graph or a launch on a stream,
// with a cold or a warm L2 or in rotation over copies of the case.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "harness/plugins/device.h"

namespace harness {

// cold: memory as large as flush_bytes() is overwritten before each sample. warm: the same launch
// comes before each sample. rotate: copies of the case take turns, so that each finds the L2 full
// of the others.
enum class Cache : uint8_t { cold, warm, rotate };
enum class Launch : uint8_t { graph, stream };
std::string_view name_of(Cache cache);
std::string_view name_of(Launch launch);

struct Condition {
  Cache cache = Cache::cold;
  Launch launch = Launch::graph;
};

// What is overwritten before a cold sample: at least 256 MB and at least twice the L2.
uint64_t flush_bytes(const Device& device);

// How many copies of a case of that many bytes a rotation takes, so that between two uses of a copy
// twice the L2 goes through; 0 where that would take more than kMostCopies (a case that small has
// to be flushed: --l2 cold).
inline constexpr int kMostCopies = 64;
int rotation_copies(const Device& device, uint64_t case_bytes);

class CapturedGraph {
 public:
  // Captures what `enqueue` puts on the stream.
  template <class Enqueue>
  CapturedGraph(const Device& device, const Stream& stream, Enqueue&& enqueue) : device_(device) {
    device.check(device.runtime().capture_begin(stream.get()), "beginning a capture");
    try {
      enqueue();
    } catch (...) {  // a stream left capturing would refuse everything after
      device.runtime().capture_end(stream.get(), &graph_);
      if (graph_) device.runtime().graph_destroy(graph_);
      throw;
    }
    device.check(device.runtime().capture_end(stream.get(), &graph_), "ending a capture");
  }
  ~CapturedGraph() { device_.runtime().graph_destroy(graph_); }
  CapturedGraph(const CapturedGraph&) = delete;  // owns the graph
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  void launch(const Stream& stream) const {
    device_.check(device_.runtime().graph_launch(graph_, stream.get()), "launching a graph");
  }

 private:
  const Device& device_;
  void* graph_ = nullptr;
};

class KernelTimer {
 public:
  // `calls`: of device pointers with their workspace, one (or the copies of a rotation); they
  // outlive the timer. Throws DeviceError, also where the implementation cannot be captured ("not
  // capturable: ...").
  KernelTimer(const Device& device, const tk_op& op, std::vector<tk_call*> calls,
              Condition condition);
  double sample();        // microseconds of one launch
  double sample_empty();  // the same with nothing launched (an empty graph; nothing on a stream)
  void launch_once();     // the first call exactly as it is timed; waits
  uint64_t flushed() const { return flush_ ? flush_->bytes() : 0; }

 private:
  void enqueue(tk_call& call);
  void launch(size_t which);
  void prepare();
  const Device& device_;
  const tk_op& op_;
  const std::vector<tk_call*> calls_;
  const Condition condition_;
  Stream stream_;
  Event begin_, end_;
  std::unique_ptr<DeviceMemory> flush_;
  std::vector<std::unique_ptr<CapturedGraph>> graphs_;
  std::unique_ptr<CapturedGraph> empty_;
  size_t turn_ = 0;
  uint8_t byte_ = 0;
};

}  // namespace harness
