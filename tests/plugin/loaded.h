// SPDX-License-Identifier: Apache-2.0
// A plugin by dlopen, and a call built by hand from the C structs alone.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "toolkit/plugin.h"

namespace plugin_test {

// Beside the test's program, wherever that was copied to.
inline std::string file_of(const std::string& plugin) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / (plugin + ".so"))
      .string();
}

// The plugin's table; a test that gets nullptr has failed already. Stays loaded: the tables live in
// it.
inline const tk_plugin* load(const std::string& plugin) {
  void* library = dlopen(file_of(plugin).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    ADD_FAILURE() << dlerror();
    return nullptr;
  }
  const auto query = reinterpret_cast<tk_plugin_query_function>(dlsym(library, "tk_plugin_query"));
  if (!query) {
    ADD_FAILURE() << dlerror();
    return nullptr;
  }
  return query(TK_ABI_VERSION);
}

inline const tk_op* find_op(const tk_plugin& plugin, const std::string& name) {
  for (uint32_t i = 0; i < plugin.op_count; ++i)
    if (name == plugin.ops[i]->name) return plugin.ops[i];
  return nullptr;
}

// Host tensors and scalars of one call.
class Call {
 public:
  explicit Call(std::string op) : op_(std::move(op)) {}
  void tensor(const char* name, tk_dtype dtype, std::vector<int64_t> shape, void* data) {
    shapes_.push_back(std::move(shape));
    const auto& s = shapes_.back();
    strides_.emplace_back(s.size(), 1);
    for (int d = static_cast<int>(s.size()) - 2; d >= 0; --d)
      strides_.back()[d] = strides_.back()[d + 1] * s[d + 1];
    tensors_.push_back({sizeof(tk_tensor), dtype, name, data, s.data(), strides_.back().data(),
                        static_cast<int32_t>(s.size()), 0});
  }
  void scalar(const char* name, const char* text) {
    scalars_.push_back({sizeof(tk_scalar), 0, name, text, std::atoll(text), std::atof(text)});
  }
  const tk_call* get() {
    tensor_pointers_.clear();
    scalar_pointers_.clear();
    for (const auto& t : tensors_) tensor_pointers_.push_back(&t);
    for (const auto& s : scalars_) scalar_pointers_.push_back(&s);
    call_ = {sizeof(tk_call),
             0,
             op_.c_str(),
             tensor_pointers_.data(),
             scalar_pointers_.data(),
             static_cast<uint32_t>(tensors_.size()),
             static_cast<uint32_t>(scalars_.size()),
             nullptr,
             0,
             nullptr,
             message,
             sizeof(message)};
    return &call_;
  }
  char message[512] = "";

 private:
  std::string op_;
  std::deque<std::vector<int64_t>> shapes_, strides_;  // deques: the structs point into them
  std::deque<tk_tensor> tensors_;
  std::deque<tk_scalar> scalars_;
  std::vector<const tk_tensor*> tensor_pointers_;
  std::vector<const tk_scalar*> scalar_pointers_;
  tk_call call_{};
};

// qsa.expand of two rows: K = 2 blocks of C = 4, one request of 11 tokens, the second row is
// padding.
struct ExpandCall {
  explicit ExpandCall(int64_t k = 2) : call("qsa.expand") {
    call.tensor("block_indices", TK_I32, {2, k}, blocks.data());
    call.tensor("query_positions", TK_I32, {2}, positions.data());
    call.tensor("sequence_lengths", TK_I32, {1}, lengths.data());
    call.tensor("token_to_req", TK_I32, {2}, requests.data());
    call.tensor("indices", TK_I32, {2, 11}, indices.data());
    call.scalar("compress_ratio", "4");
    call.scalar("token_topk", "8");
  }
  std::vector<int32_t> blocks{1, 0, 0, 0, 0, 0}, positions{9, -1}, lengths{11}, requests{0, 0};
  std::vector<int32_t> indices = std::vector<int32_t>(22, 77);
  std::vector<int32_t> right{4,  5,  6,  7,  0,  1,  2,  3,  8,  9,  -1,
                             -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  Call call;
};

}  // namespace plugin_test
