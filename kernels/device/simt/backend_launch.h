// SPDX-License-Identifier: Apache-2.0
// device::launch on the host: runs the whole grid and returns. Included by device/launch.h, which
// declares Grid and LaunchError.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "executor.h"

namespace device {

inline size_t shared_limit() { return simt::shared_limit(SIMT_WAVE); }
inline int multiprocessors() { return 4; }  // few, so that small cases are cut into several waves of blocks

template <class... Params, class... Arguments>
void launch(void (*kernel)(Params...), Grid grid, int threads, size_t dynamic_shared_bytes,
            void* /*stream*/, Arguments&&... arguments) {
  static_assert(sizeof...(Params) == sizeof...(Arguments),
                "a kernel is launched with all of its parameters");
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

}  // namespace device
