// SPDX-License-Identifier: Apache-2.0
// device::launch on the host: runs the whole grid and returns. Included by device/launch.h, which
// declares Grid and LaunchError.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "device/planning.h"
#include "device/symbol_name.h"
#include "executor.h"

namespace device {

// Few, so that small cases are cut into several waves of blocks.
inline int multiprocessors() { return planning() ? planning()->device->multiprocessors : 4; }
inline int64_t shared_bytes_of_block() {
  return planning() ? int64_t(planning()->device->shared_bytes_per_block)
                    : int64_t(simt::described_shared(SIMT_WAVE));
}
inline bool has_warpgroups() {
  return planning() ? std::string(planning()->device->arch) == "sm_90" : SIMT_WAVE == 32;
}

// simt has what those have.
inline bool hopper_or_later() { return !planning() || planned_sm() >= 90; }

inline void copy_memory(void* to, const void* from, size_t bytes, void* /*stream*/) {
  if (!planning()) std::memcpy(to, from, bytes);
}

template <class... Params, class... Arguments>
void launch(void (*kernel)(Params...), Grid grid, int threads, size_t dynamic_shared_bytes,
            void* /*stream*/, Arguments&&... arguments) {
  static_assert(sizeof...(Params) == sizeof...(Arguments),
                "a kernel is launched with all of its parameters");
  if (planning())
    return report_launch(symbol_name(reinterpret_cast<const void*>(kernel)),
                         {grid.x, grid.y, grid.z}, threads, dynamic_shared_bytes);
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
  } call{kernel, {std::forward<Arguments>(arguments)...}};
  const simt::Launch launch{
      .kernel = reinterpret_cast<const void*>(kernel),
      .body =
          [](void* p) { std::apply(static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->params); },
      .call = &call,
      .blocks = {grid.x, grid.y, grid.z},
      .threads = threads,
      .wave = SIMT_WAVE,
      .dynamic_shared_bytes = dynamic_shared_bytes,
  };
  try {
    simt::run(launch);
  } catch (const simt::KernelError& e) {
    throw LaunchError(e.what());
  }
}

// One launch ends before the next begins here.
template <class... Params, class... Arguments>
void launch_overlapping(void (*kernel)(Params...), Grid grid, int threads,
                        size_t dynamic_shared_bytes, void* stream, Arguments&&... arguments) {
  launch(kernel, grid, threads, dynamic_shared_bytes, stream,
         std::forward<Arguments>(arguments)...);
}

}  // namespace device
