// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/kernel_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/plugins/errors.h"

namespace harness {

std::string_view name_of(Cache cache) { return cache == Cache::cold ? "cold" : "warm"; }
std::string_view name_of(Launch launch) { return launch == Launch::graph ? "graph" : "stream"; }

uint64_t flush_bytes(const Device& device) {
  return std::max<uint64_t>(256'000'000, 2 * device.info().l2_bytes);
}

KernelTimer::KernelTimer(const Device& device, const Implementation& implementation,
                         Placement& placement, Condition condition)
    : device_(device),
      implementation_(implementation),
      placement_(placement),
      condition_(condition),
      stream_(device),
      begin_(device),
      end_(device) {
  if (condition.cache == Cache::cold)
    flush_ = std::make_unique<DeviceMemory>(device, flush_bytes(device));
  if (condition.launch == Launch::stream) return;
  if (!device.graphs())
    throw DeviceError(fmt::format("{} has no graphs; use --launch stream", device.name()));
  graph_ = std::make_unique<CapturedGraph>(device, stream_, [&] { enqueue(); });
  empty_ = std::make_unique<CapturedGraph>(device, stream_, [] {});
}

void KernelTimer::enqueue() {
  std::array<char, 1024> message{};
  tk_call& call = placement_.call();
  call.stream = stream_.get();
  call.message = message.data();
  call.message_bytes = message.size();
  const bool capturing = condition_.launch == Launch::graph;
  call.flags = capturing ? TK_CALL_CAPTURING : 0;
  const tk_status status = implementation_.op->run(&call);
  call.flags = 0;
  if (status != TK_OK)
    throw DeviceError(fmt::format("{}{}", capturing ? "not capturable: " : "",
                                  message[0] ? message.data() : "it gives no reason"));
}

// What runs before a sample, outside the timed interval. It also keeps the device busy while the
// host enqueues, so that the events do not time the host.
void KernelTimer::prepare() {
  if (flush_)
    flush_->fill(++byte_, stream_.get());
  else if (graph_)
    graph_->launch(stream_);
  else
    enqueue();
}

double KernelTimer::sample() {
  prepare();
  begin_.record(stream_);
  graph_ ? graph_->launch(stream_) : enqueue();
  end_.record(stream_);
  return end_.microseconds_since(begin_);
}

double KernelTimer::sample_empty() {
  prepare();
  begin_.record(stream_);
  if (empty_) empty_->launch(stream_);
  end_.record(stream_);
  return end_.microseconds_since(begin_);
}

void KernelTimer::launch_once() {
  graph_ ? graph_->launch(stream_) : enqueue();
  stream_.synchronize();
}

}  // namespace harness
