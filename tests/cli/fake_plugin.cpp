// SPDX-License-Identifier: Apache-2.0
// A backend "fake" in host memory with one right and many wrong implementations of qsa.expand, to
// see what the tools make of them. Its clock is the host's; it says that its times count, so that
// the bench can be tried without a GPU.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>

#include "qsa/expand.h"

namespace {

using Clock = std::chrono::steady_clock;

thread_local std::string last_error;
tk_status fail(const char* text) {
  last_error = text;
  return TK_ERROR;
}

const char* error_text() { return last_error.c_str(); }
tk_status device_count(int32_t* count) {
  *count = 1;
  return TK_OK;
}
tk_status device_info(int32_t, tk_device_info* info) {
  info->wave = 1;
  std::strcpy(info->name, "fake, \"quoted\" device");  // a name that CSV has to quote
  std::strcpy(info->arch, "none");
  info->l2_bytes = 1 << 10;
  info->memory_bytes = uint64_t{2} << 30;
  return TK_OK;
}
tk_status open_device(int32_t) { return TK_OK; }
tk_status allocate(uint64_t bytes, void** memory) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory ? TK_OK : fail("no memory");
}
void release(void* memory) { std::free(memory); }
tk_status copy(void* to, const void* from, uint64_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return TK_OK;
}
// Touches a page only: flushing 256 MB per sample would make the tests slow, and this backend has
// no cache to flush.
tk_status fill(void* memory, uint8_t byte, uint64_t bytes, void*) {
  std::memset(memory, byte, bytes < 4096 ? bytes : 4096);
  return TK_OK;
}
tk_status stream_create(void** stream) {
  *stream = std::malloc(1);
  return TK_OK;
}
tk_status synchronize(void*) { return TK_OK; }
tk_status event_create(void** event) {
  *event = new Clock::time_point;
  return TK_OK;
}
void event_destroy(void* event) { delete static_cast<Clock::time_point*>(event); }
tk_status event_record(void* event, void*) {
  *static_cast<Clock::time_point*>(event) = Clock::now();
  return TK_OK;
}
tk_status event_elapsed_us(void* begin, void* end, double* us) {
  *us = std::chrono::duration<double, std::micro>(*static_cast<Clock::time_point*>(end) -
                                                  *static_cast<Clock::time_point*>(begin))
            .count();
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

int64_t id(const toolkit::TensorView& t, int64_t i, int64_t j = 0) {
  const int64_t at = i * t.stride(0) + (t.rank() > 1 ? j * t.stride(1) : 0);
  return t.dtype() == TK_I32 ? t.data<int32_t>()[at] : t.data<int64_t>()[at];
}

toolkit::Args args_of(const tk_call* call) { return {qsa::expand::contract, *call}; }

// The contract, word by word.
tk_status right(const tk_call* call) {
  const auto a = args_of(call);
  const auto blocks = a.tensor("block_indices"), lengths = a.tensor("sequence_lengths"),
             out = a.tensor("indices");
  const int64_t c = a.integer("compress_ratio"), k = a.integer("token_topk") / c;
  for (int64_t i = 0; i < out.size(0); ++i) {
    const int64_t request = id(a.tensor("token_to_req"), i),
                  pos = id(a.tensor("query_positions"), i);
    const bool live = request >= 0 && request < lengths.size(0);
    const int64_t len = live && id(lengths, request) > 0 ? id(lengths, request) : 0;
    const int64_t seen = pos < 0 ? 0 : pos + 1;
    const int64_t full = std::min({seen / c, len / c, k});
    for (int64_t j = 0; j < out.size(1); ++j) {
      int64_t token = -1;
      if (j < full * c)
        token = id(blocks, i, j / c) * c + j % c;
      else if (j < full * c + seen % c)
        token = seen / c * c + j - full * c;
      out.data<int32_t>()[i * out.stride(0) + j] =
          token >= 0 && token < len ? static_cast<int32_t>(token) : -1;
    }
  }
  return TK_OK;
}

int32_t* first_index(const tk_call* call) {
  return args_of(call).tensor("indices").data<int32_t>();
}
bool has_rows(const tk_call* call) { return args_of(call).tensor("indices").count() > 0; }

tk_status wrong(const tk_call* call) {
  right(call);
  if (has_rows(call)) first_index(call)[0] += 1;
  return TK_OK;
}
tk_status beyond(const tk_call* call) {  // right, and one element too many
  right(call);
  const auto out = args_of(call).tensor("indices");
  if (has_rows(call)) first_index(call)[out.count()] = -1;
  return TK_OK;
}
tk_status changes_input(const tk_call* call) {
  right(call);
  if (has_rows(call)) args_of(call).tensor("block_indices").data<char>()[0] ^= 1;
  return TK_OK;
}
tk_status writes_nothing(const tk_call*) { return TK_OK; }
tk_status error(const tk_call* call) {
  std::strncpy(call->message, "the fake kernel, said \"no\"", call->message_bytes);
  return TK_ERROR;
}
tk_status invalid(const tk_call* call) {
  std::strncpy(call->message, "indices: expected a blue tensor", call->message_bytes);
  return TK_INVALID;
}
tk_status hang(const tk_call*) {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}
tk_status noisy(const tk_call* call) {  // every other call takes three thousand times as long
  static int calls = 0;
  if (++calls % 4 < 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  return right(call);
}
bool third(const tk_call* call) { return args_of(call).tensor("indices").size(0) == 3; }
tk_status third_faults(const tk_call* call) {
  if (third(call)) std::raise(SIGSEGV);
  return right(call);
}
tk_status third_hangs(const tk_call* call) { return third(call) ? hang(call) : right(call); }
tk_status third_throws(const tk_call* call) {
  if (third(call)) throw std::runtime_error("the fake kernel throws, \"for once\"");
  return right(call);
}
tk_status third_exits(const tk_call* call) {
  if (third(call)) {
    std::fputs("the fake kernel calls exit\n", stderr);
    std::_Exit(9);
  }
  return right(call);
}
// As after an illegal access on a GPU: from then on every call of this process fails.
tk_status third_breaks_context(const tk_call* call) {
  static bool broken = false;
  broken = broken || third(call);
  return broken ? error(call) : right(call);
}
tk_status fourth_hangs(const tk_call* call) {
  return args_of(call).tensor("indices").size(0) == 4 ? hang(call) : right(call);
}
tk_status no_workspace(const tk_call*, uint64_t* bytes) {
  *bytes = 0;
  return TK_OK;
}
tk_status unsupported(const tk_call* call, uint64_t*) {
  std::strncpy(call->message, "because 62 blocks do not fit 48 multiprocessors",
               call->message_bytes);
  return TK_UNSUPPORTED;
}
tk_status some_workspace(const tk_call*, uint64_t* bytes) {
  *bytes = 100;
  return TK_OK;
}
tk_status much_workspace(const tk_call*, uint64_t* bytes) {
  *bytes = uint64_t{3} << 30;
  return TK_OK;
}
tk_status overruns_workspace(const tk_call* call) {
  static_cast<char*>(call->workspace)[call->workspace_bytes] = 0;
  return right(call);
}

const tk_op kOps[] = {
    {sizeof(tk_op), 0, "qsa.expand", "right", no_workspace, right, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "wrong", no_workspace, wrong, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "beyond", no_workspace, beyond, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "changes-input", no_workspace, changes_input, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "writes-nothing", no_workspace, writes_nothing, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "overruns-workspace", some_workspace, overruns_workspace, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "error", no_workspace, error, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "invalid", no_workspace, invalid, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "unsupported", unsupported, right, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "noisy", no_workspace, noisy, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "hang", no_workspace, hang, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "third-faults", no_workspace, third_faults, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "third-hangs", no_workspace, third_hangs, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "third-throws", no_workspace, third_throws, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "third-exits", no_workspace, third_exits, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "third-breaks-context", no_workspace, third_breaks_context, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "fourth-hangs", no_workspace, fourth_hangs, nullptr},
    {sizeof(tk_op), 0, "qsa.expand", "greedy", much_workspace, right, nullptr},
};
const tk_op* const kTable[] = {&kOps[0],  &kOps[1],  &kOps[2],  &kOps[3],  &kOps[4],  &kOps[5],
                               &kOps[6],  &kOps[7],  &kOps[8],  &kOps[9],  &kOps[10], &kOps[11],
                               &kOps[12], &kOps[13], &kOps[14], &kOps[15], &kOps[16], &kOps[17]};
constexpr uint32_t kCount = std::size(kTable);
const tk_plugin kPlugin{sizeof(tk_plugin), TK_ABI_VERSION, "fake", "1", nullptr,
                        &runtime,          kTable,         kCount, 0};

}  // namespace

extern "C" TK_EXPORT const tk_plugin* tk_plugin_query(uint32_t) {
#ifdef FAKE_OLD_ABI
  static const tk_plugin old{
      sizeof(tk_plugin), TK_ABI_VERSION + 1, "old", "1", nullptr, &runtime, kTable, kCount, 0};
  return &old;
#else
  return &kPlugin;
#endif
}
