// SPDX-License-Identifier: Apache-2.0
// Times one implementation on a placed case by device events: replay of a captured graph or a
// launch on a stream, with a cold or a warm L2.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "harness/plugins/device.h"
#include "harness/run/placement.h"

namespace harness {

enum class Cache : uint8_t { cold, warm };
enum class Launch : uint8_t { graph, stream };
std::string_view name_of(Cache cache);
std::string_view name_of(Launch launch);

struct Condition {
  Cache cache = Cache::cold;
  Launch launch = Launch::graph;
};

// What is overwritten before a cold sample: at least 256 MB and at least twice the L2.
uint64_t flush_bytes(const Device& device);

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
  // The placement has run once (run_once), so its workspace is there. Throws DeviceError, also
  // where the implementation cannot be captured ("not capturable: ...").
  KernelTimer(const Device& device, const Implementation& implementation, Placement& placement,
              Condition condition);
  double sample();        // microseconds of one launch
  double sample_empty();  // the same with nothing launched (an empty graph; nothing on a stream)
  void launch_once();     // exactly as it is timed; waits
  uint64_t flushed() const { return flush_ ? flush_->bytes() : 0; }

 private:
  void enqueue();
  void prepare();
  const Device& device_;
  const Implementation& implementation_;
  Placement& placement_;
  const Condition condition_;
  Stream stream_;
  Event begin_, end_;
  std::unique_ptr<DeviceMemory> flush_;
  std::unique_ptr<CapturedGraph> graph_, empty_;
  uint8_t byte_ = 0;
};

}  // namespace harness
