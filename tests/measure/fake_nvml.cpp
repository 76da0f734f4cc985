// SPDX-License-Identifier: Apache-2.0
// A management library with two cards in it. The second says why its clock is low:
// FAKE_NVML_REASONS. With FAKE_NVML_FAILS every other question about clock and power fails.
#include <cstdlib>
#include <cstring>

namespace {
int cards[2];
bool fails() {
  static int asked = 0;
  return std::getenv("FAKE_NVML_FAILS") && ++asked % 4 < 2;
}
}

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index > 1) return 2;
  *device = &cards[index];
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  *device = &cards[1];
  return std::strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
}
int nvmlDeviceGetName(void* device, char* name, unsigned) {
  std::strcpy(name, device == &cards[1] ? "measured" : "another card");
  return 0;
}
int nvmlDeviceGetClockInfo(void*, unsigned type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 0;
  return fails() ? 999 : 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 350500;
  return fails() ? 999 : 0;
}
int nvmlDeviceGetTemperature(void*, unsigned, unsigned*) { return 3; }  // not supported
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  const char* text = std::getenv("FAKE_NVML_REASONS");
  *reasons = text ? std::strtoull(text, nullptr, 0) : 1;  // idle
  return 0;
}
}
