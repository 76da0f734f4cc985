// SPDX-License-Identifier: Apache-2.0
#include "harness/plugins/device.h"

#include <fmt/format.h>

#include <charconv>

#include "harness/plugins/errors.h"

namespace harness {

namespace {

int32_t parse_index(std::string_view name, std::string_view text) {
  int32_t index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size() || index < 0)
    throw BadRequest(fmt::format(
        "device '{}': expected a backend and an index such as cuda:0, got index '{}'", name, text));
  return index;
}

}  // namespace

Device::Device(Registry& registry, std::string_view name) {
  const size_t colon = name.find(':');
  backend_ = name.substr(0, colon);
  index_ = colon == std::string_view::npos ? 0 : parse_index(name, name.substr(colon + 1));
  runtime_ = &registry.runtime(backend_);
  int32_t count = 0;
  check(runtime_->device_count(&count), "counting devices");
  if (index_ >= count)
    throw BadRequest(fmt::format("device '{}': there {} {} {} device{}, so the last index is {}",
                                 name, count == 1 ? "is" : "are", count, backend_,
                                 count == 1 ? "" : "s", count - 1));
  info_.struct_size = sizeof info_;
  check(runtime_->device_info(index_, &info_), "asking for the device's properties");
  select();
  name_ = backend_ == "simt" ? backend_ : fmt::format("{}:{}", backend_, index_);
}

void Device::select() const { check(runtime_->open(index_), "opening the device"); }

void Device::check(tk_status status, std::string_view what) const {
  if (status == TK_OK) return;
  const char* text = runtime_->last_error();
  throw DeviceError(fmt::format("{}: {}{}: {}", name_.empty() ? backend_ : name_, what,
                                status == TK_OUT_OF_MEMORY ? " (out of memory)" : "",
                                text && *text ? text : "the backend gives no reason"));
}

void Device::set_option(const std::string& option, const std::string& value) const {
  const bool has = runtime_->struct_size >= offsetof(tk_runtime, set_option) + sizeof(void*) &&
                   runtime_->set_option;
  if (!has) throw BadRequest(fmt::format("device '{}' has no option '{}'", name_, option));
  if (runtime_->set_option(option.c_str(), value.c_str()) == TK_OK) return;
  const char* text = runtime_->last_error();
  throw BadRequest(fmt::format("device '{}': option {}={} is refused: {}", name_, option, value,
                               text ? text : ""));
}

std::vector<Device> find_devices(Registry& registry, const std::vector<std::string>& names,
                                 std::vector<std::string>& absent) {
  std::vector<Device> devices;
  bool all = false;
  for (const auto& name : names) {
    if (name == "all")
      all = true;
    else
      devices.emplace_back(registry, name);
  }
  if (!names.empty() && !all) return devices;
  devices.clear();
  for (const auto& backend : registry.backends()) {
    if (const std::string why = registry.why_absent(backend); !why.empty()) {
      absent.push_back(fmt::format("{}: absent, because {}", backend, why));
      continue;
    }
    int32_t count = 0;
    if (registry.runtime(backend).device_count(&count) != TK_OK) continue;
    for (int32_t i = 0; i < (all ? count : 1); ++i)
      devices.emplace_back(registry, fmt::format("{}:{}", backend, i));
    if (!all && !devices.empty()) break;
  }
  if (devices.empty()) throw Absent(fmt::format("no device at all: {}", fmt::join(absent, "; ")));
  return devices;
}

DeviceMemory::DeviceMemory(const Device& device, uint64_t bytes)
    : device_(&device), bytes_(bytes), memory_(nullptr, Release{&device.runtime()}) {
  void* memory = nullptr;
  device.check(device.runtime().allocate(bytes ? bytes : 1, &memory),
               fmt::format("allocating {} bytes", bytes));
  memory_.reset(static_cast<std::byte*>(memory));
}

void DeviceMemory::write(uint64_t offset, const void* from, uint64_t bytes) const {
  if (bytes)
    device_->check(device_->runtime().copy_in(data() + offset, from, bytes, nullptr),
                   "copying to the device");
}

void DeviceMemory::read(uint64_t offset, void* to, uint64_t bytes) const {
  if (bytes)
    device_->check(device_->runtime().copy_out(to, data() + offset, bytes, nullptr),
                   "copying from the device");
}

void DeviceMemory::fill(uint8_t byte, void* stream) const {
  device_->check(device_->runtime().fill(data(), byte, bytes_, stream), "filling memory");
}

Stream::Stream(const Device& device) : device_(device) {
  device.check(device.runtime().stream_create(&stream_), "creating a stream");
}
Stream::~Stream() { device_.runtime().stream_destroy(stream_); }
void Stream::synchronize() const {
  device_.check(device_.runtime().synchronize(stream_), "waiting for the kernel");
}

Event::Event(const Device& device) : device_(device) {
  device.check(device.runtime().event_create(&event_), "creating an event");
}
Event::~Event() { device_.runtime().event_destroy(event_); }
void Event::record(const Stream& stream) const {
  device_.check(device_.runtime().event_record(event_, stream.get()), "recording an event");
}
double Event::microseconds_since(const Event& begin) const {
  double us = 0;
  device_.check(device_.runtime().event_elapsed_us(begin.event_, event_, &us), "reading events");
  return us;
}

}  // namespace harness
