// SPDX-License-Identifier: Apache-2.0
// One device of a backend, and what lives on it: memory, streams, graphs, events. All functions
// throw DeviceError with the backend's own text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plugins/registry.h"

namespace harness {

class Device {
 public:
  // "simt", "cuda:0", "hip:1", "mine:0"; without an index the first. Throws BadRequest (unknown,
  // index out of range), Absent, DeviceError.
  Device(Registry& registry, std::string_view name);

  const std::string& name() const { return name_; }        // "cuda:0"; "simt"
  const std::string& backend() const { return backend_; }  // "cuda"
  const tk_runtime& runtime() const { return *runtime_; }
  const tk_device_info& info() const { return info_; }
  bool timed() const { return runtime_->flags & TK_RUNTIME_TIMED; }
  bool graphs() const { return runtime_->flags & TK_RUNTIME_GRAPHS; }
  void select() const;  // makes it the calling thread's device
  void set_option(const std::string& option, const std::string& value) const;
  void check(tk_status status, std::string_view what) const;

 private:
  std::string name_, backend_;
  int32_t index_ = 0;
  const tk_runtime* runtime_;
  tk_device_info info_{};
};

// The devices of a request: each name, "all", or the default (the first GPU, else simt) where there
// is none. Backends that "all" leaves out are named in `absent`.
std::vector<Device> find_devices(Registry& registry, const std::vector<std::string>& names,
                                 std::vector<std::string>& absent);

// Memory on a device; moves, does not copy (it frees).
class DeviceMemory {
 public:
  DeviceMemory(const Device& device, uint64_t bytes);
  std::byte* data() const { return memory_.get(); }
  uint64_t bytes() const { return bytes_; }
  void write(uint64_t offset, const void* from, uint64_t bytes) const;
  void read(uint64_t offset, void* to, uint64_t bytes) const;
  void fill(uint8_t byte, void* stream) const;

 private:
  struct Release {
    const tk_runtime* runtime;
    void operator()(std::byte* p) const { runtime->release(p); }
  };
  const Device* device_;
  uint64_t bytes_;
  std::unique_ptr<std::byte, Release> memory_;
};

class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(const Stream&) = delete;  // owns the backend's stream
  Stream& operator=(const Stream&) = delete;
  void* get() const { return stream_; }
  void synchronize() const;

 private:
  const Device& device_;
  void* stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const Device& device);
  ~Event();
  Event(const Event&) = delete;  // owns the backend's event
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) const;
  double microseconds_since(const Event& begin) const;

 private:
  const Device& device_;
  void* event_ = nullptr;
};

}  // namespace harness
