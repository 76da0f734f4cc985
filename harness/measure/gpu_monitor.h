// SPDX-License-Identifier: Apache-2.0
// Clocks, power, temperature and the reasons of a lowered clock, from NVIDIA's management library.
// It is loaded at run time; a machine without it has no readings, and nothing else changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "harness/plugins/device.h"

namespace harness {

struct GpuReadings {  // of some readings while a case ran; a value that the card does not tell is 0
  int count = 0;
  int clocks = 0, powers = 0;         // readings that the card answered
  double clock_mhz = 0, power_w = 0;  // means of those
  double temp_c = 0;                  // highest
  uint64_t reasons = 0;               // all that were seen
};

class GpuMonitor {
 public:
  explicit GpuMonitor(const Device& device, const std::string& library = "libnvidia-ml.so.1");
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;  // owns the library's handle
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  bool present() const { return library_ != nullptr; }
  void begin();  // forgets earlier readings and takes one
  // Takes a reading; true where the card runs below its clock because it is too hot or its supply
  // says so. The software power cap, which a card under full load meets in its normal work, is a
  // reading and no reason to discard.
  bool throttled();
  const GpuReadings& readings() const { return readings_; }

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  GpuReadings readings_;
};

// "power cap, hardware slowdown": the reasons in words; empty where there is none worth a word.
std::string throttle_words(uint64_t reasons);

}  // namespace harness
