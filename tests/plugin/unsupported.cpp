// SPDX-License-Identifier: Apache-2.0
// A plugin whose kernels never serve, for tests of the tools: each answers "unsupported, because
// ...".
#include <cstdio>

#include "toolkit/plugin.h"

namespace {

tk_status refuse(const tk_call* call) {
  if (call->message)
    std::snprintf(call->message, call->message_bytes, "because this plugin serves nothing");
  return TK_UNSUPPORTED;
}
tk_status workspace(const tk_call* call, uint64_t*) { return refuse(call); }

}  // namespace

const tk_plugin* tk_plugin_query(uint32_t) {
  static const tk_op expand{sizeof(tk_op), 0, "qsa.expand", "never", workspace, refuse, nullptr};
  static const tk_op rotate{sizeof(tk_op), 0, "tq.rotate", "never", workspace, refuse, nullptr};
  static const tk_op* const ops[] = {&expand, &rotate};
  static const tk_plugin plugin{
      sizeof(tk_plugin), TK_ABI_VERSION, "unsupported", "1", "simt", nullptr, ops, 2, 0};
  return &plugin;
}
