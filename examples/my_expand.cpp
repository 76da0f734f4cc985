// SPDX-License-Identifier: Apache-2.0
// A kernel of your own, as a plugin: qsa.expand in plain C++, on the simt backend, whose memory is
// host memory.
//   qsa-verify run qsa.expand --plugin bin/example-expand.so --impl mine/plain-loop
#include <algorithm>
#include <cstdio>
#include <exception>

#include "qsa/expand.h"

namespace {

int64_t id(const toolkit::TensorView& t, int64_t at) {
  return t.dtype() == TK_I64 ? t.data<int64_t>()[at] : t.data<int32_t>()[at];
}

void expand(const toolkit::Args& a) {
  const auto blocks = a.tensor("block_indices"), positions = a.tensor("query_positions");
  const auto lengths = a.tensor("sequence_lengths"), requests = a.tensor("token_to_req"),
             out = a.tensor("indices");
  const int64_t ratio = a.integer("compress_ratio");
  for (int64_t row = 0; row < out.size(0); ++row) {
    const int64_t request = id(requests, row * requests.stride(0));
    const int64_t seen = std::max<int64_t>(id(positions, row * positions.stride(0)) + 1, 0);
    int64_t length =
        request >= 0 && request < lengths.size(0) ? id(lengths, request * lengths.stride(0)) : 0;
    length = std::max<int64_t>(length, 0);
    const int64_t full = std::min({seen / ratio, length / ratio, blocks.size(1)}) * ratio;
    for (int64_t j = 0; j < out.size(1); ++j) {
      int64_t token = -1;
      if (j < full) {
        const int64_t block = id(blocks, row * blocks.stride(0) + j / ratio * blocks.stride(1));
        if (block >= 0 && block < length) token = block * ratio + j % ratio;
      } else if (j - full < seen % ratio) {
        token = seen / ratio * ratio + (j - full);
      }
      out.data<int32_t>()[row * out.stride(0) + j * out.stride(1)] =
          token < length ? int32_t(token) : -1;
    }
  }
}

// Both entries check the call against the contract, so that a bad one is told what it lacks.
template <class Body>
tk_status checked(const tk_call* call, Body body) {
  try {
    const toolkit::Args args(qsa::expand::contract, *call);
    args.check(true);
    body(args);
    return TK_OK;
  } catch (const std::exception& e) {
    if (call->message) std::snprintf(call->message, call->message_bytes, "%s", e.what());
    return TK_INVALID;
  }
}
tk_status workspace(const tk_call* call, uint64_t* bytes) {
  return checked(call, [&](const toolkit::Args&) { *bytes = 0; });
}
tk_status run(const tk_call* call) { return checked(call, expand); }

}  // namespace

const tk_plugin* tk_plugin_query(uint32_t host_abi_version) {
  static const tk_op op{sizeof(tk_op), 0, "qsa.expand", "plain-loop", workspace, run};
  static const tk_op* const ops[] = {&op};
  static const tk_plugin plugin{
      sizeof(tk_plugin), TK_ABI_VERSION, "mine", "1", "simt", nullptr, ops, 1, 0};
  return host_abi_version == TK_ABI_VERSION ? &plugin : nullptr;
}
