// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime behind the C ABI. Nothing here needs a driver to load: without one every call
// answers with a line.
#include "device/runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <string>

namespace device {
namespace {

thread_local std::string last_error_text;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

tk_status failed(tk_status status, std::string text) {
  last_error_text = std::move(text);
  return status;
}

// The status of a runtime call; `what` names it in the text. The error is taken from the runtime,
// so that it does not come up again in a later, innocent call.
tk_status checked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return TK_OK;
  cudaGetLastError();
  return failed(
      error == cudaErrorMemoryAllocation ? TK_OUT_OF_MEMORY : TK_ERROR,
      std::string(what) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

const char* last_error() { return last_error_text.c_str(); }

tk_status device_count(int32_t* count) {
  *count = 0;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string versions = "driver version " + (driver ? version_text(driver) : "0") +
                               ", runtime " + version_text(runtime);
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaSuccess && *count > 0) return TK_OK;
  cudaGetLastError();
  *count = 0;
  if (error == cudaErrorInsufficientDriver && driver == 0)
    return failed(TK_UNSUPPORTED, "no CUDA driver on this machine (" + versions + ")");
  if (error == cudaErrorInsufficientDriver)
    return failed(TK_UNSUPPORTED,
                  "the CUDA driver is too old (" + versions + "); update the driver");
  if (error == cudaErrorNoDevice || error == cudaSuccess)
    return failed(TK_UNSUPPORTED, "CUDA driver present, no device (" + versions + ")");
  return failed(TK_UNSUPPORTED, std::string("CUDA does not start: ") + cudaGetErrorName(error) +
                                    " (" + cudaGetErrorString(error) + "; " + versions + ")");
}

// "580.159.03" of the kernel module, which the CUDA API does not tell; empty where there is no such
// file.
std::string kernel_module_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word)
    if (std::isdigit(static_cast<unsigned char>(word[0])) && word.find('.') != std::string::npos)
      return word;
  return {};
}

template <size_t N>
void put_text(char (&room)[N], const std::string& text) {
  std::snprintf(room, N, "%s", text.c_str());
}

tk_status device_info(int32_t device, tk_device_info* info) {
  if (info->struct_size < sizeof(tk_device_info))
    return failed(TK_INVALID, "device_info: struct_size: expected at least " +
                                  std::to_string(sizeof(tk_device_info)) + ", got " +
                                  std::to_string(info->struct_size));
  cudaDeviceProp prop{};
  if (const tk_status s =
          checked(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties"))
    return s;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string module = kernel_module_version();
  info->wave = prop.warpSize;
  put_text(info->name, prop.name);
  put_text(info->arch, "sm_" + std::to_string(prop.major) + std::to_string(prop.minor));
  put_text(info->driver, module.empty() ? "CUDA " + version_text(driver)
                                        : module + " (CUDA " + version_text(driver) + ")");
  put_text(info->toolkit, version_text(runtime));
  info->memory_bytes = prop.totalGlobalMem;
  info->l2_bytes = static_cast<uint64_t>(prop.l2CacheSize);
  info->shared_bytes_per_block = prop.sharedMemPerBlockOptin;
  info->multiprocessors = prop.multiProcessorCount;
  info->reserved = 0;
  return TK_OK;
}

tk_status open_device(int32_t device) { return checked(cudaSetDevice(device), "cudaSetDevice"); }

tk_status allocate(uint64_t bytes, void** memory) {
  *memory = nullptr;
  const tk_status status = checked(cudaMalloc(memory, std::max<uint64_t>(bytes, 1)), "cudaMalloc");
  if (status == TK_OUT_OF_MEMORY) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    last_error_text += ": " + std::to_string(bytes) + " bytes asked for, " + std::to_string(free) +
                       " of " + std::to_string(total) + " free";
  }
  return status;
}
void release(void* memory) { cudaFree(memory); }

tk_status copy_in(void* to, const void* from, uint64_t bytes, void* stream) {
  return checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(stream)),
                 "copy to the device");
}
tk_status copy_out(void* to, const void* from, uint64_t bytes, void* stream) {
  if (const tk_status s =
          checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
                  "copy from the device"))
    return s;
  return checked(cudaStreamSynchronize(stream_of(stream)), "copy from the device");
}
tk_status fill(void* memory, uint8_t byte, uint64_t bytes, void* stream) {
  return checked(cudaMemsetAsync(memory, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

tk_status stream_create(void** stream) {
  // Not blocking: work of the default stream must not get between the launches that are timed.
  cudaStream_t created = nullptr;
  const tk_status s =
      checked(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreate");
  *stream = created;
  return s;
}
void stream_destroy(void* stream) { cudaStreamDestroy(stream_of(stream)); }
tk_status synchronize(void* stream) {
  return checked(cudaStreamSynchronize(stream_of(stream)), "synchronize");
}

tk_status capture_begin(void* stream) {
  return checked(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
                 "begin of a capture");
}
tk_status capture_end(void* stream, void** graph) {
  *graph = nullptr;
  cudaGraph_t captured = nullptr;
  if (const tk_status s =
          checked(cudaStreamEndCapture(stream_of(stream), &captured), "end of a capture"))
    return s;
  cudaGraphExec_t executable = nullptr;
  const tk_status s =
      checked(cudaGraphInstantiate(&executable, captured, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(captured);
  *graph = executable;
  return s;
}
tk_status graph_launch(void* graph, void* stream) {
  return checked(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)),
                 "cudaGraphLaunch");
}
void graph_destroy(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

tk_status event_create(void** event) {
  cudaEvent_t created = nullptr;
  const tk_status s = checked(cudaEventCreate(&created), "cudaEventCreate");
  *event = created;
  return s;
}
void event_destroy(void* event) { cudaEventDestroy(event_of(event)); }
tk_status event_record(void* event, void* stream) {
  return checked(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
tk_status event_elapsed_us(void* begin, void* end, double* microseconds) {
  if (const tk_status s = checked(cudaEventSynchronize(event_of(end)), "cudaEventSynchronize"))
    return s;
  float milliseconds = 0;
  const tk_status s = checked(cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)),
                              "cudaEventElapsedTime");
  *microseconds = 1e3 * static_cast<double>(milliseconds);
  return s;
}

tk_status set_option(const char* name, const char*) {
  return failed(TK_INVALID, std::string("cuda: option ") + name +
                                ": expected no option at all, this backend has none");
}

}  // namespace

const Backend& backend() {
  static const tk_runtime runtime{sizeof(tk_runtime),
                                  TK_RUNTIME_TIMED | TK_RUNTIME_GRAPHS,
                                  last_error,
                                  device_count,
                                  device_info,
                                  open_device,
                                  allocate,
                                  release,
                                  copy_in,
                                  copy_out,
                                  fill,
                                  stream_create,
                                  stream_destroy,
                                  synchronize,
                                  capture_begin,
                                  capture_end,
                                  graph_launch,
                                  graph_destroy,
                                  event_create,
                                  event_destroy,
                                  event_record,
                                  event_elapsed_us,
                                  set_option};
  static const Backend cuda{"cuda", &runtime};
  return cuda;
}

}  // namespace device
