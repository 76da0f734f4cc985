// SPDX-License-Identifier: Apache-2.0
// A backend "measured" in host memory with a made-up clock: each op adds to it what it costs by its
// bytes, so that roofs and shares of them come out as known. It has right probes, a qsa.expand
// whose speed is MEASURED_GBPS, and a launch that costs 2 us; its L2 has MEASURED_L2 bytes. Filling
// memory costs time, too: where a flush is timed, it shows.
#include <cstdlib>
#include <cstring>
#include <string>

#include "qsa/expand.h"
#include "roof/empty.h"
#include "roof/read.h"

namespace {

double now_us = 0;
thread_local std::string last_error;

const char* error_text() { return last_error.c_str(); }
tk_status device_count(int32_t* count) {
  *count = 2;
  return TK_OK;
}
tk_status device_info(int32_t, tk_device_info* info) {
  info->wave = 1;
  std::strcpy(info->name, "measured");
  const char* l2 = std::getenv("MEASURED_L2");
  info->l2_bytes = l2 ? std::strtoull(l2, nullptr, 10) : 1 << 10;
  info->memory_bytes = 16 << 20;
  info->multiprocessors = 1;
  return TK_OK;
}
tk_status open_device(int32_t) { return TK_OK; }
tk_status allocate(uint64_t bytes, void** memory) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory ? TK_OK : TK_OUT_OF_MEMORY;
}
void release(void* memory) { std::free(memory); }
tk_status copy(void* to, const void* from, uint64_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return TK_OK;
}
tk_status fill(void* memory, uint8_t byte, uint64_t bytes, void*) {
  std::memset(memory, byte, bytes < 4096 ? bytes : 4096);
  now_us += static_cast<double>(bytes) * 1e-3;
  return TK_OK;
}
tk_status stream_create(void** stream) {
  *stream = std::malloc(1);
  return TK_OK;
}
tk_status synchronize(void*) { return TK_OK; }
tk_status event_create(void** event) {
  *event = new double;
  return TK_OK;
}
void event_destroy(void* event) { delete static_cast<double*>(event); }
tk_status event_record(void* event, void*) {
  *static_cast<double*>(event) = now_us;
  return TK_OK;
}
tk_status event_elapsed_us(void* begin, void* end, double* us) {
  *us = *static_cast<double*>(end) - *static_cast<double*>(begin);
  return TK_OK;
}

const tk_runtime runtime{sizeof(tk_runtime),
                         TK_RUNTIME_TIMED,
                         error_text,
                         device_count,
                         device_info,
                         open_device,
                         allocate,
                         release,
                         copy,
                         copy,
                         fill,
                         stream_create,
                         release,
                         synchronize,
                         nullptr,
                         nullptr,
                         nullptr,
                         nullptr,
                         event_create,
                         event_destroy,
                         event_record,
                         event_elapsed_us,
                         nullptr};

tk_status no_workspace(const tk_call*, uint64_t* bytes) {
  *bytes = 0;
  return TK_OK;
}

// 1 GB/s: a kilobyte a microsecond.
tk_status read(const tk_call* call) {
  const toolkit::Args a(roof::read::contract, *call);
  const auto source = a.tensor("source"), sums = a.tensor("sums");
  const auto passes = static_cast<uint32_t>(a.integer("passes"));
  std::memset(sums.data<void>(), 0, static_cast<size_t>(sums.count()) * 4);
  for (int64_t i = 0; i < source.count(); ++i)
    sums.data<uint32_t>()[0] += passes * source.data<const uint32_t>()[i];
  if (std::getenv("MEASURED_WRONG")) ++sums.data<uint32_t>()[0];
  now_us += static_cast<double>(source.count()) * 4e-3 * passes;
  return TK_OK;
}
tk_status empty(const tk_call* call) {
  now_us += 2 * static_cast<double>(toolkit::Args(roof::empty::contract, *call).integer("nodes"));
  return TK_OK;
}

int64_t id(const toolkit::TensorView& t, int64_t i, int64_t j = 0) {
  const int64_t at = i * t.stride(0) + (t.rank() > 1 ? j * t.stride(1) : 0);
  return t.dtype() == TK_I32 ? t.data<int32_t>()[at] : t.data<int64_t>()[at];
}
tk_status expand(const tk_call* call) {
  const toolkit::Args a(qsa::expand::contract, *call);
  const auto blocks = a.tensor("block_indices"), lengths = a.tensor("sequence_lengths"),
             out = a.tensor("indices");
  const int64_t c = a.integer("compress_ratio"), k = a.integer("token_topk") / c;
  for (int64_t i = 0; i < out.size(0); ++i) {
    const int64_t seen = id(a.tensor("query_positions"), i) + 1,
                  len = id(lengths, id(a.tensor("token_to_req"), i));
    const int64_t full = std::min(std::min(seen / c, len / c), k);
    for (int64_t j = 0; j < out.size(1); ++j) {
      int64_t token = -1;
      if (j < full * c)
        token = id(blocks, i, j / c) * c + j % c;
      else if (j < full * c + seen % c)
        token = seen / c * c + j - full * c;
      out.data<int32_t>()[i * out.stride(0) + j] = token < len ? static_cast<int32_t>(token) : -1;
    }
  }
  const char* gbps = std::getenv("MEASURED_GBPS");
  const double bytes = static_cast<double>(out.count() + blocks.count()) * 4;
  now_us += bytes * 1e-3 / (gbps ? std::atof(gbps) : 0.5);
  return TK_OK;
}

const tk_op kOps[] = {{sizeof(tk_op), 0, "qsa.expand", "priced", no_workspace, expand, nullptr},
                      {sizeof(tk_op), 0, "roof.read", "priced", no_workspace, read, nullptr},
                      {sizeof(tk_op), 0, "roof.empty", "priced", no_workspace, empty, nullptr}};
const tk_op* const kTable[] = {&kOps[0], &kOps[1], &kOps[2]};
const tk_plugin kPlugin{sizeof(tk_plugin), TK_ABI_VERSION, "measured", "1", nullptr,
                        &runtime,          kTable,         3,          0};

}  // namespace

extern "C" TK_EXPORT const tk_plugin* tk_plugin_query(uint32_t) { return &kPlugin; }
