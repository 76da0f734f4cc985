// SPDX-License-Identifier: Apache-2.0
// device::launch for HIP. Kernels are compiled device-only so far, and the host half of a kernel
// source is parsed but not built; it has to name each kernel it launches, because that is what
// instantiates it.
#pragma once

#include <cstddef>
#include <utility>

namespace device {

inline int multiprocessors() { throw LaunchError("the hip backend has no host side yet"); }
inline int64_t shared_bytes_of_block() {
  throw LaunchError("the hip backend has no host side yet");
}

inline void copy_memory(void*, const void*, size_t, void*) {
  throw LaunchError("the hip backend has no host side yet");
}

template <class... Params, class... Arguments>
void launch(void (*)(Params...), Grid, int, size_t, void*, Arguments&&...) {
  static_assert(sizeof...(Params) == sizeof...(Arguments),
                "a kernel is launched with all of its parameters");
  throw LaunchError("the hip backend has no host side yet");
}

template <class... Params, class... Arguments>
void launch_overlapping(void (*kernel)(Params...), Grid grid, int threads, size_t bytes,
                        void* stream, Arguments&&... arguments) {
  launch(kernel, grid, threads, bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace device
