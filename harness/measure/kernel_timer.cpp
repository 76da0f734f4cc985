// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/kernel_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "harness/plugins/errors.h"

namespace harness {

std::string_view name_of(Cache cache) {
  switch (cache) {
    case Cache::cold:
      return "cold";
    case Cache::warm:
      return "warm";
    case Cache::rotate:
      return "rotate";
  }
  return "?";
}
std::string_view name_of(Launch launch) { return launch == Launch::graph ? "graph" : "stream"; }

uint64_t flush_bytes(const Device& device) {
  return std::max<uint64_t>(256'000'000, 2 * device.info().l2_bytes);
}

int rotation_copies(const Device& device, uint64_t case_bytes) {
  const uint64_t wanted = 2 * device.info().l2_bytes, each = std::max<uint64_t>(case_bytes, 1);
  const uint64_t copies = std::max<uint64_t>(2, 1 + (wanted + each - 1) / each);
  return copies > kMostCopies ? 0 : static_cast<int>(copies);
}

KernelTimer::KernelTimer(const Device& device, const tk_op& op, std::vector<tk_call*> calls,
                         Condition condition)
    : device_(device),
      op_(op),
      calls_(std::move(calls)),
      condition_(condition),
      stream_(device),
      begin_(device),
      end_(device) {
  if (condition.cache == Cache::cold)
    flush_ = std::make_unique<DeviceMemory>(device, flush_bytes(device));
  if (condition.launch == Launch::stream) return;
  if (!device.graphs())
    throw DeviceError(fmt::format("{} has no graphs; use --launch stream", device.name()));
  for (tk_call* call : calls_)
    graphs_.push_back(std::make_unique<CapturedGraph>(device, stream_, [&] { enqueue(*call); }));
  empty_ = std::make_unique<CapturedGraph>(device, stream_, [] {});
}

void KernelTimer::enqueue(tk_call& call) {
  std::array<char, 1024> message{};
  call.stream = stream_.get();
  call.message = message.data();
  call.message_bytes = message.size();
  const bool capturing = condition_.launch == Launch::graph;
  call.flags = capturing ? TK_CALL_CAPTURING : 0;
  const tk_status status = op_.run(&call);
  call.flags = 0;
  if (status != TK_OK)
    throw DeviceError(fmt::format("{}{}", capturing ? "not capturable: " : "",
                                  message[0] ? message.data() : "it gives no reason"));
}

void KernelTimer::launch(size_t which) {
  graphs_.empty() ? enqueue(*calls_[which]) : graphs_[which]->launch(stream_);
}

// What runs before a sample, outside the timed interval. It also keeps the device busy while the
// host enqueues, so that the events do not time the host.
void KernelTimer::prepare() {
  if (flush_)
    flush_->fill(++byte_, stream_.get());
  else
    launch(turn_);
}

double KernelTimer::sample() {
  prepare();
  turn_ = (turn_ + 1) % calls_.size();
  begin_.record(stream_);
  launch(turn_);
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
  launch(0);
  stream_.synchronize();
}

}  // namespace harness
