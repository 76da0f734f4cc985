// SPDX-License-Identifier: Apache-2.0
// Kernels with one fault planted in each, and the same kernels without it: planted FAULT
// wrong|right [ORDER]. Runs it in that order or in several, prints how many values are wrong and
// ends with 1 if there are any; a race is for ThreadSanitizer to report, and an access outside for
// AddressSanitizer. Built plain and under both (CMakeLists.txt).
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/launch.h"

namespace {

using device::kWave;
constexpr int kThreads = 2 * 64;

// Between lanes of a wave: another lane's value is read without waiting for it.
DEVICE_KERNEL(kWave) lanes(int* out, bool right) {
  DEVICE_SHARED(int, s, kWave);
  s[device::lane()] = device::lane();
  if (right) device::sync_wave();
  out[device::lane()] = s[kWave - 1 - device::lane()];
}

// The same with a shuffle in between: it makes lanes meet, and orders no memory.
DEVICE_KERNEL(kWave) lanes_after_shuffle(int* out, bool right) {
  DEVICE_SHARED(int, s, kWave);
  s[device::lane()] = device::shuffle_xor(device::lane(), 1) ^ 1;
  device::all(true);
  if (right) device::sync_wave();
  out[device::lane()] = s[kWave - 1 - device::lane()];
}

// Between waves: a barrier of the wave where one of the block is needed.
DEVICE_KERNEL(kThreads) waves(int* out, bool right) {
  DEVICE_SHARED(int, s, kThreads);
  const int t = device::thread();
  s[t] = t;
  if (right)
    device::sync_block();
  else
    device::sync_wave();
  out[t] = s[kThreads - 1 - t];
}

// Between iterations: the buffer is written again while others still read it.
DEVICE_KERNEL(kThreads) iterations(int* out, bool right) {
  DEVICE_SHARED(int, s, kThreads);
  const int t = device::thread();
  for (int i = 0; i < 4; ++i) {
    s[t] = i == 3 ? t : -i;
    device::sync_block();
    int seen = 0;
    for (int k = 0; k < 2; ++k) seen += s[kThreads - 1 - t];
    out[t] = seen / 2;
    if (i == 2 && seen != -4) out[kThreads] = 1;  // saw the values of the last iteration early
    if (right) device::sync_block();
  }
}

// Between blocks: a plain addition to one word.
DEVICE_KERNEL(kThreads) blocks(int* out, bool right) {
  if (device::thread() != 0) return;
  if (right)
    device::atomic_add(out, 1);
  else
    out[0] += 1;
}

// An asynchronous copy: the wait covers the thread's own copies, not those of others.
DEVICE_KERNEL(kThreads) copy(int* out, const int* in, bool right) {
  DEVICE_SHARED(int, s, 4 * kThreads);
  const int t = device::thread();
  device::copy_async16(&s[4 * t], in + 4 * t, true);
  device::copy_async_commit();
  device::copy_async_wait<0>();
  if (right) device::sync_block();
  out[t] = s[4 * (kThreads - 1 - t)];
}

// An asynchronous copy into a buffer that other waves still read.
DEVICE_KERNEL(kThreads) copy_too_early(int* out, const int* in, bool right) {
  DEVICE_SHARED(int, s, 4 * kThreads);
  const int t = device::thread();
  for (int i = 0; i < 4; ++i) s[4 * t + i] = in[4 * t + i];
  device::sync_block();
  out[t] = s[4 * (kThreads - 1 - t)];
  if (right) device::sync_block();
  device::copy_async16(&s[4 * t], in + 4 * t, true);
  device::copy_async_commit();
  device::copy_async_wait<0>();
}

// A wait that leaves the newest group open, where its data are used.
DEVICE_KERNEL(kWave) copy_wait(int* out, const int* in, bool right) {
  DEVICE_SHARED(int, s, 4 * kWave);
  const int t = device::thread();
  device::copy_async16(&s[4 * t], in + 4 * t, true);
  device::copy_async_commit();
  if (right) device::copy_async_wait<0>();
  device::copy_async_wait<1>();
  out[t] = s[4 * t];
  device::copy_async_wait<0>();
}

// One element past the end of global memory is read; the value is dropped, so only AddressSanitizer
// can tell.
DEVICE_KERNEL(kWave) global_read(int* out, const int* in, bool right) {
  const int t = device::thread();
  const volatile int* p = in;
  const int past = p[4 * kThreads - (right ? 1 : 0)];
  out[t] = (past & 0) + t;
}

// A raw pointer into shared memory runs one element past its array.
DEVICE_KERNEL(kWave) shared_write(int* out, bool right) {
  DEVICE_SHARED(int, s, kWave);
  int* raw = device::data(s);
  raw[device::lane() + (right ? 0 : 1)] = -1;
  out[device::lane()] = device::lane();
}

struct Fault {
  int threads;
  int blocks;
  std::function<void(device::Grid, int, int*, const int*, bool)> run;
  std::function<int(int)> expected;
};

template <class... P>
auto launcher(void (*kernel)(P...)) {
  return [kernel](device::Grid grid, int threads, int* out, const int* in, bool right) {
    if constexpr (sizeof...(P) == 3)
      device::launch(kernel, grid, threads, 0, nullptr, out, in, right);
    else
      (void)in, device::launch(kernel, grid, threads, 0, nullptr, out, right);
  };
}

int same(int t) { return t; }
int mirrored_wave(int t) { return kWave - 1 - t; }
int mirrored(int t) { return kThreads - 1 - t; }
int mirrored_copy(int t) { return 4 * (kThreads - 1 - t); }

const std::map<std::string, Fault> kFaults{
    {"lanes", {kWave, 1, launcher(lanes), mirrored_wave}},
    {"lanes_after_shuffle", {kWave, 1, launcher(lanes_after_shuffle), mirrored_wave}},
    {"waves", {kThreads, 1, launcher(waves), mirrored}},
    {"iterations", {kThreads, 1, launcher(iterations), mirrored}},
    {"blocks", {kThreads, 8, launcher(blocks), [](int t) { return t == 0 ? 8 : 0; }}},
    {"copy", {kThreads, 1, launcher(copy), mirrored_copy}},
    {"copy_too_early", {kThreads, 1, launcher(copy_too_early), mirrored_copy}},
    {"copy_wait", {kWave, 1, launcher(copy_wait), [](int t) { return 4 * t; }}},
    {"global_read", {kWave, 1, launcher(global_read), same}},
    {"shared_write", {kWave, 1, launcher(shared_write), same}},
};

// True: all values are right, and the executor has nothing to report.
bool fine(const Fault& fault, bool right, const char* order) {
  if (!simt::parse_order(order, simt::options()))
    return std::fprintf(stderr, "no such order: %s\n", order), false;
  std::vector<int> out(kThreads + 1), in(4 * kThreads);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i);
  try {
    fault.run({fault.blocks}, fault.threads, out.data(), in.data(), right);
  } catch (const device::LaunchError& e) {
    return std::printf("%s: reported: %s\n", order, e.what()), false;
  }
  int wrong = out[kThreads];
  for (int t = 0; t < fault.threads; ++t) wrong += out[t] != fault.expected(t);
  std::printf("%s: values wrong: %d\n", order, wrong);
  return wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto fault = argc > 1 ? kFaults.find(argv[1]) : kFaults.end();
  if (argc < 3 || fault == kFaults.end())
    return std::fprintf(stderr, "usage: planted FAULT wrong|right [ORDER]\n"), 2;
  const bool right = std::strcmp(argv[2], "right") == 0;
  std::vector<const char*> orders{"forward", "reverse", "seed:1", "seed:2"};
  if (argc > 3) orders = {argv[3]};
  bool all_fine = true;
  for (const char* order : orders) all_fine &= fine(fault->second, right, order);
  return all_fine ? 0 : 1;
}
