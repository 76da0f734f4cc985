// SPDX-License-Identifier: Apache-2.0
// The plugin of a backend: its runtime and every op whose kernel was compiled into this shared
// object. Compiled with TOOLKIT_PLUGIN_NAME="mine" it is a plugin of further kernels for that
// backend, without a runtime of its own.
#include "toolkit/plugin.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/op.h"
#include "device/runtime.h"

namespace device {

std::vector<const tk_op*>& op_table() {
  static std::vector<const tk_op*> table;  // filled by DEVICE_OP while the shared object is loaded
  return table;
}

}  // namespace device

const tk_plugin* tk_plugin_query(uint32_t host_abi_version) {
  if (host_abi_version != TK_ABI_VERSION) return nullptr;
  static const tk_plugin plugin = [] {
    auto& ops = device::op_table();
    std::sort(ops.begin(), ops.end(),
              [](const tk_op* a, const tk_op* b) {
                const int order = std::strcmp(a->name, b->name);
                return order ? order < 0 : std::strcmp(a->implementation, b->implementation) < 0;
              });
    const device::Backend& backend = device::backend();
    tk_plugin made{sizeof(tk_plugin),
                   TK_ABI_VERSION,
                   backend.name,
                   TOOLKIT_VERSION,
                   nullptr,
                   backend.runtime,
                   ops.data(),
                   static_cast<uint32_t>(ops.size()),
                   0};
#ifdef TOOLKIT_PLUGIN_NAME
    made.name = TOOLKIT_PLUGIN_NAME;
    made.runs_on = backend.name;
    made.runtime = nullptr;
#endif
    return made;
  }();
  return &plugin;
}
