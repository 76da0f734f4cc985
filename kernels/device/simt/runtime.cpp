// SPDX-License-Identifier: Apache-2.0
// The simt runtime behind the C ABI: device memory is heap memory of exactly the size asked for, so
// that AddressSanitizer sees an access past its end, and a launch has ended when it returns.
// Neither graphs nor events: nobody should time an emulator.
#include "device/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "executor.h"

namespace device {
namespace {

constexpr int kWave = SIMT_WAVE;
thread_local std::string last_error_text;

tk_status failed(tk_status status, std::string text) {
  last_error_text = std::move(text);
  return status;
}

const char* last_error() { return last_error_text.c_str(); }

tk_status device_count(int32_t* count) {
  *count = 1;
  return TK_OK;
}

tk_status checked_device(int32_t device, const char* what) {
  if (device == 0) return TK_OK;
  return failed(TK_INVALID, std::string(what) + ": device: expected 0, simt has one device, got " +
                                std::to_string(device));
}

template <size_t N>
void put_text(char (&room)[N], const std::string& text) {
  std::snprintf(room, N, "%s", text.c_str());
}

tk_status device_info(int32_t device, tk_device_info* info) {
  if (const tk_status s = checked_device(device, "device_info")) return s;
  if (info->struct_size < sizeof(tk_device_info))
    return failed(TK_INVALID, "device_info: struct_size: expected at least " +
                                  std::to_string(sizeof(tk_device_info)) + ", got " +
                                  std::to_string(info->struct_size));
  const std::string lanes = std::to_string(kWave);
  info->wave = kWave;
  put_text(info->name, "simt (host, " + lanes + " lanes)");
  put_text(info->arch, "simt" + lanes);
  put_text(info->driver, "");
#ifdef __clang__
  put_text(info->toolkit, "clang " __clang_version__);
#else
  put_text(info->toolkit, "g++ " __VERSION__);
#endif
  info->memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  info->l2_bytes = 0;
  info->shared_bytes_per_block = simt::described_shared(kWave);
  info->multiprocessors = static_cast<int32_t>(std::thread::hardware_concurrency());
  info->reserved = 0;
  return TK_OK;
}

tk_status open_device(int32_t device) { return checked_device(device, "open"); }

tk_status allocate(uint64_t bytes, void** memory) {
  *memory = nullptr;
  if (posix_memalign(memory, 256, std::max<uint64_t>(bytes, 1)) != 0)
    return failed(TK_OUT_OF_MEMORY,
                  "simt: out of memory: " + std::to_string(bytes) + " bytes asked for");
  return TK_OK;
}
void release(void* memory) { std::free(memory); }

// memmove: an empty copy may come with null pointers, and memcpy promises nothing then.
tk_status copy(void* to, const void* from, uint64_t bytes, void*) {
  if (bytes > 0) std::memmove(to, from, bytes);
  return TK_OK;
}
tk_status fill(void* memory, uint8_t byte, uint64_t bytes, void*) {
  if (bytes > 0) std::memset(memory, byte, bytes);
  return TK_OK;
}

tk_status stream_create(void** stream) {
  static char the_stream;
  *stream = &the_stream;
  return TK_OK;
}
void stream_destroy(void*) {}
tk_status synchronize(void*) { return TK_OK; }

tk_status no_graphs() {
  return failed(TK_UNSUPPORTED,
                "simt has no graphs, because it runs kernels on the host when they are launched");
}
tk_status capture_begin(void*) { return no_graphs(); }
tk_status capture_end(void*, void** graph) {
  *graph = nullptr;
  return no_graphs();
}
tk_status graph_launch(void*, void*) { return no_graphs(); }
void graph_destroy(void*) {}

tk_status no_events() {
  return failed(TK_UNSUPPORTED, "simt has no events, because its times say nothing about a kernel");
}
tk_status event_create(void** event) {
  *event = nullptr;
  return no_events();
}
void event_destroy(void*) {}
tk_status event_record(void*, void*) { return no_events(); }
tk_status event_elapsed_us(void*, void*, double* microseconds) {
  *microseconds = 0;
  return no_events();
}

tk_status set_option(const char* name, const char* value) {
  const std::string got = ", got '" + std::string(value) + "'";
  if (std::strcmp(name, "order") == 0) {
    if (simt::parse_order(value, simt::options())) return TK_OK;
    return failed(TK_INVALID, "simt: option order: expected forward, reverse or seed:N" + got);
  }
  if (std::strcmp(name, "threads") == 0) {
    int threads = 0;
    const char* const end = value + std::strlen(value);
    const auto [stop, error] = std::from_chars(value, end, threads);
    if (error != std::errc{} || stop != end || threads < 1 || threads > 256)
      return failed(TK_INVALID, "simt: option threads: expected 1 to 256" + got);
    simt::options().os_threads = threads;
    return TK_OK;
  }
  return failed(TK_INVALID,
                std::string("simt: option ") + name + ": expected one of order, threads");
}

}  // namespace

const Backend& backend() {
  static const tk_runtime runtime{.struct_size = sizeof(tk_runtime),
                                  .flags = 0,
                                  .last_error = last_error,
                                  .device_count = device_count,
                                  .device_info = device_info,
                                  .open = open_device,
                                  .allocate = allocate,
                                  .release = release,
                                  .copy_in = copy,
                                  .copy_out = copy,
                                  .fill = fill,
                                  .stream_create = stream_create,
                                  .stream_destroy = stream_destroy,
                                  .synchronize = synchronize,
                                  .capture_begin = capture_begin,
                                  .capture_end = capture_end,
                                  .graph_launch = graph_launch,
                                  .graph_destroy = graph_destroy,
                                  .event_create = event_create,
                                  .event_destroy = event_destroy,
                                  .event_record = event_record,
                                  .event_elapsed_us = event_elapsed_us,
                                  .set_option = set_option};
  static const Backend simt{"simt", &runtime};
  return simt;
}

}  // namespace device
