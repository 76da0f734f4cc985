// SPDX-License-Identifier: Apache-2.0
#include "harness/measure/gpu_monitor.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace harness {

namespace {

// Bits of nvmlDeviceGetCurrentClocksThrottleReasons.
constexpr uint64_t kPowerCap = 0x4, kHardwareSlowdown = 0x8, kSoftwareThermal = 0x20,
                   kHardwareThermal = 0x40, kPowerBrake = 0x80;
constexpr uint64_t kDiscarding =
    kHardwareSlowdown | kSoftwareThermal | kHardwareThermal | kPowerBrake;

constexpr unsigned kSmClock = 1, kGpuSensor = 0;  // nvmlClockType_t, nvmlTemperatureSensors_t

using Handle = void*;

// What the management library has to be asked for: "cuda:1" is the second entry of
// CUDA_VISIBLE_DEVICES where that is set, an index or a UUID; else "1".
std::string visible_device(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string index = colon == std::string::npos ? "0" : name.substr(colon + 1);
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list || !*list) return index;
  std::istringstream entries(list);
  std::string entry;
  for (int i = std::atoi(index.c_str()); i >= 0; --i)
    if (!std::getline(entries, entry, ',')) return index;
  return entry;
}

}  // namespace

struct GpuMonitor::Library {
  ~Library() {
    if (shutdown) shutdown();
    if (file) dlclose(file);
  }
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
  }
  // Opens the library and finds the device; false where either is not there.
  bool open(const std::string& name, const Device& wanted) {
    file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!file) return false;
    int (*init)() = nullptr;
    int (*by_index)(unsigned, Handle*) = nullptr;
    int (*by_uuid)(const char*, Handle*) = nullptr;
    int (*name_of)(Handle, char*, unsigned) = nullptr;
    find(init, "nvmlInit_v2");
    find(by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(by_uuid, "nvmlDeviceGetHandleByUUID");
    find(name_of, "nvmlDeviceGetName");
    find(clock, "nvmlDeviceGetClockInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(temperature, "nvmlDeviceGetTemperature");
    find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    if (!init || !by_index || !by_uuid || !name_of || init() != 0) return false;
    find(shutdown, "nvmlShutdown");
    const std::string which = visible_device(wanted.name());
    const bool uuid = which.starts_with("GPU-") || which.starts_with("MIG-");
    if ((uuid ? by_uuid(which.c_str(), &device)
              : by_index(static_cast<unsigned>(std::atoi(which.c_str())), &device)) != 0)
      return false;
    // The two sides may count different cards in different order; cards of one name they do not.
    std::array<char, 128> found{};
    return name_of(device, found.data(), found.size()) == 0 &&
           std::string_view(found.data()) == wanted.info().name;
  }
  template <class Function, class... Arguments>
  std::optional<double> value(Function function, Arguments... arguments) const {
    unsigned v = 0;
    if (!function || function(device, arguments..., &v) != 0) return {};
    return v;
  }

  void* file = nullptr;
  Handle device = nullptr;
  int (*shutdown)() = nullptr;
  int (*clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*power)(Handle, unsigned*) = nullptr;  // milliwatts
  int (*temperature)(Handle, unsigned, unsigned*) = nullptr;
  int (*reasons)(Handle, unsigned long long*) = nullptr;
};

GpuMonitor::GpuMonitor(const Device& device, const std::string& library) {
  auto opened = std::make_unique<Library>();
  if (opened->open(library, device)) library_ = std::move(opened);
}

GpuMonitor::~GpuMonitor() = default;

void GpuMonitor::begin() {
  readings_ = {};
  throttled();
}

bool GpuMonitor::throttled() {
  if (!library_) return false;
  unsigned long long reasons = 0;
  if (library_->reasons && library_->reasons(library_->device, &reasons) != 0) reasons = 0;
  GpuReadings& r = readings_;
  ++r.count;
  // A call that fails now and then is no reading of 0.
  if (const auto mhz = library_->value(library_->clock, kSmClock))
    r.clock_mhz += (*mhz - r.clock_mhz) / ++r.clocks;
  if (const auto milliwatts = library_->value(library_->power))
    r.power_w += (*milliwatts / 1e3 - r.power_w) / ++r.powers;
  if (const auto celsius = library_->value(library_->temperature, kGpuSensor))
    r.temp_c = std::max(r.temp_c, *celsius);
  r.reasons |= reasons;
  return reasons & kDiscarding;
}

std::string throttle_words(uint64_t reasons) {
  constexpr auto kWords = std::to_array<std::pair<uint64_t, const char*>>(
      {{kPowerCap, "power cap"},
       {kHardwareSlowdown, "hardware slowdown"},
       {kSoftwareThermal, "thermal slowdown by software"},
       {kHardwareThermal, "thermal slowdown by hardware"},
       {kPowerBrake, "power brake"}});
  std::string text;
  for (const auto& [bit, word] : kWords)
    if (reasons & bit) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

}  // namespace harness
