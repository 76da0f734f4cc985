// SPDX-License-Identifier: Apache-2.0
// device::launch on CUDA. Included by device/launch.h, which declares Grid and LaunchError.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "device/planning.h"
#include "device/symbol_name.h"

namespace device {

[[noreturn]] inline void launch_failed(const void* kernel, const char* what, cudaError_t error,
                                       Grid grid, int threads, size_t dynamic_shared_bytes) {
  cudaGetLastError();  // taken here, so that a later call does not report it again
  throw LaunchError(symbol_name(kernel) + ": " + what + " with grid " + std::to_string(grid.x) +
                    "x" + std::to_string(grid.y) + "x" + std::to_string(grid.z) + ", " +
                    std::to_string(threads) + " threads, " + std::to_string(dynamic_shared_bytes) +
                    " bytes of dynamic shared memory: " + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ")");
}

// An attribute of the current device, or the field that describes the planned one.
inline int64_t device_attribute(cudaDeviceAttr attribute, int64_t planned) {
  if (planning()) return planned;
  int device = 0, value = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, device);
  if (error != cudaSuccess)
    throw LaunchError(std::string("device attribute ") + std::to_string(attribute) + ": " +
                      cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")");
  return value;
}
inline int multiprocessors() {
  return int(device_attribute(cudaDevAttrMultiProcessorCount,
                              planning() ? planning()->device->multiprocessors : 0));
}
inline int64_t shared_bytes_of_block() {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin,
                          planning() ? int64_t(planning()->device->shared_bytes_per_block) : 0);
}

// Whether kernels can overlap (launch_overlapping) and copy in bulk (device/nvidia.h): from sm_90
// on.
inline bool hopper_or_later() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor, planning() ? planned_sm() / 10 : 0) >=
         9;
}
constexpr bool compiled_for(int arch) {
#if defined(__CUDA_ARCH_LIST__)
  for (const int one : {__CUDA_ARCH_LIST__})
    if (one == arch) return true;
#endif
  return arch == 0;
}
inline bool has_warpgroups() {
  if (!compiled_for(900)) return false;
  if (planning()) return std::string(planning()->device->arch) == "sm_90";
  return device_attribute(cudaDevAttrComputeCapabilityMajor, 0) == 9;
}

inline void copy_memory(void* to, const void* from, size_t bytes, void* stream) {
  if (planning()) return;
  const cudaError_t error =
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw LaunchError(std::string("a copy within the device: ") + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ")");
}

template <class... Params, class... Arguments>
void launch_kernel(bool overlapping, void (*kernel)(Params...), Grid grid, int threads,
                   size_t dynamic_shared_bytes, void* stream, Arguments&&... arguments) {
  static_assert(sizeof...(Params) == sizeof...(Arguments),
                "a kernel is launched with all of its parameters");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (planning())
    return report_launch(symbol_name(entry), {grid.x, grid.y, grid.z}, threads,
                         dynamic_shared_bytes);
  // Checked here because dim3 has 32 bits: a count of blocks that wraps would launch too few.
  if (grid.x < 0 || grid.x > INT32_MAX || grid.y < 0 || grid.y > 65535 || grid.z < 0 ||
      grid.z > 65535)
    launch_failed(entry, "more blocks than a grid has (2147483647 x 65535 x 65535)",
                  cudaErrorInvalidConfiguration, grid, threads, dynamic_shared_bytes);
  if (dynamic_shared_bytes > 0) {  // more than 48 KiB, static included, has to be asked for
    const cudaError_t error = cudaFuncSetAttribute(
        entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic_shared_bytes));
    if (error != cudaSuccess)
      launch_failed(entry, "no room", error, grid, threads, dynamic_shared_bytes);
  }
  std::tuple<std::remove_cv_t<Params>...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t error = std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                          static_cast<unsigned>(grid.z));
        cudaLaunchAttribute overlap{};
        overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        overlap.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = blocks;
        config.blockDim = dim3(static_cast<unsigned>(threads));
        config.dynamicSmemBytes = dynamic_shared_bytes;
        config.stream = static_cast<cudaStream_t>(stream);
        config.attrs = &overlap;
        config.numAttrs = overlapping ? 1 : 0;
        return cudaLaunchKernelExC(&config, entry, pointers);
      },
      values);
  if (error != cudaSuccess)
    launch_failed(entry, "not launched", error, grid, threads, dynamic_shared_bytes);
}

// Enqueues kernel(arguments...) and returns.
template <class... Params, class... Arguments>
void launch(void (*kernel)(Params...), Grid grid, int threads, size_t dynamic_shared_bytes,
            void* stream, Arguments&&... arguments) {
  launch_kernel(false, kernel, grid, threads, dynamic_shared_bytes, stream,
                std::forward<Arguments>(arguments)...);
}
template <class... Params, class... Arguments>
void launch_overlapping(void (*kernel)(Params...), Grid grid, int threads,
                        size_t dynamic_shared_bytes, void* stream, Arguments&&... arguments) {
  launch_kernel(hopper_or_later(), kernel, grid, threads, dynamic_shared_bytes, stream,
                std::forward<Arguments>(arguments)...);
}

}  // namespace device
