// SPDX-License-Identifier: Apache-2.0
// Oracle of qsa.step: the stages' oracles in a server's order, each fed with what the one before
// puts out, rounded to its dtype. A judge takes a step apart and asks the stages' oracles about
// what each stage really got; this whole is the truth of the last stage where nothing is close to a
// tie, as in the dense case.
#include "qsa/step.h"

#include <deque>
#include <stdexcept>

#include "reference/oracle.h"
#include "reference/reader.h"

namespace reference {
namespace {

// A call put together from another call's tensors, by other names, and from results of oracles.
class Call {
 public:
  Call(const toolkit::Args& from, const toolkit::Contract& contract)
      : from_(from), contract_(contract) {}

  void tensor(const std::string& name, const std::string& source) {
    const toolkit::TensorView t = from_.find(source);
    if (!t) return;  // an optional one
    tk_tensor copy = t.raw();
    add(name, copy);
  }
  void result(const std::string& name, const Output& o) {
    const size_t size = size_t(toolkit::bytes_of(o.dtype));
    size_t count = 1;
    for (const int64_t n : o.shape) count *= size_t(n);
    std::vector<std::byte>& bytes = buffers_.emplace_back(count * size + 1);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bits = !o.integer.empty() ? uint64_t(o.integer[i])
                            : o.bytes.empty()  ? encode(o.dtype, o.value[i])
                                               : 0;
      std::memcpy(&bytes[i * size],
                  o.bytes.empty() ? static_cast<const void*>(&bits) : &o.bytes[i * size], size);
    }
    toolkit::Shape& shape = shapes_.emplace_back(o.shape);
    toolkit::Shape& strides = shapes_.emplace_back(o.shape.size(), 1);
    for (size_t d = o.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
    tk_tensor t{};
    t.struct_size = sizeof t;
    t.dtype = o.dtype;
    t.data = bytes.data();
    t.shape = shape.data();
    t.strides = strides.data();
    t.rank = int32_t(shape.size());
    add(name, t);
  }
  void scalar(const std::string& name, int64_t value) {
    tk_scalar s{};
    s.struct_size = sizeof s;
    s.name = names_.emplace_back(name).c_str();
    s.text = names_.emplace_back(std::to_string(value)).c_str();
    s.integer = value;
    s.real = double(value);
    scalars_.push_back(s);
    scalar_pointers_.push_back(&scalars_.back());
  }

  Result run() {
    tk_call call{};
    call.struct_size = sizeof call;
    call.tensors = tensor_pointers_.data();
    call.tensor_count = uint32_t(tensor_pointers_.size());
    call.scalars = scalar_pointers_.data();
    call.scalar_count = uint32_t(scalar_pointers_.size());
    const Oracle oracle = find(contract_.op);
    if (!oracle) throw std::logic_error("qsa.step: no oracle of " + std::string(contract_.op));
    return oracle(toolkit::Args(contract_, call));
  }

 private:
  void add(const std::string& name, tk_tensor t) {
    t.name = names_.emplace_back(name).c_str();
    tensors_.push_back(t);
    tensor_pointers_.push_back(&tensors_.back());
  }

  const toolkit::Args& from_;
  const toolkit::Contract& contract_;
  std::deque<std::string> names_;  // deques: addresses stay
  std::deque<std::vector<std::byte>> buffers_;
  std::deque<toolkit::Shape> shapes_;
  std::deque<tk_tensor> tensors_;
  std::deque<tk_scalar> scalars_;
  std::vector<const tk_tensor*> tensor_pointers_;
  std::vector<const tk_scalar*> scalar_pointers_;
};

Result step(const toolkit::Args& a) {
  const int64_t ratio = a.integer("compress_ratio"), topk = a.integer("token_topk");
  Result all;
  const auto take = [&](const std::string& stage, Result r) {
    for (auto& [name, output] : r.outputs)
      all.outputs.insert_or_assign(stage + "." + name, std::move(output));
    for (const std::string& f : r.findings) all.findings.push_back(stage + ": " + f);
  };

  Call compress(a, ::qsa::compress::contract);
  for (const char* name : {"raw_keys", "raw_positions", "compressor_state_cache",
                           "compressor_state_block_table", "rope_cache"})
    compress.tensor(name, std::string("compress.") + name);
  for (const char* name :
       {"token_to_req", "query_start_loc", "logical_positions", "compressed_slots"})
    compress.tensor(name, name);
  compress.scalar("compress_ratio", ratio);
  take("compress", compress.run());

  Call store(a, ::qsa::store::contract);
  store.tensor("cache", "store.cache");
  store.tensor("rows", "store.rows");
  store.tensor("slot_mapping", "compressed_slots");
  take("store", store.run());

  if (a.has("ring_slots")) {
    Call ring(a, ::qsa::store::contract);
    ring.tensor("cache", "compress.compressor_state_cache");
    ring.tensor("rows", "compress.raw_keys");
    ring.tensor("slot_mapping", "ring_slots");
    all.outputs.insert_or_assign("compress.compressor_state_cache", ring.run().outputs.at("cache"));
  }

  Call score(a, ::qsa::score::contract);
  score.tensor("q", "score.q");
  score.result("k_cache", all.outputs.at("store.cache"));
  for (const char* name : {"page_table", "token_to_req", "query_positions", "sequence_lengths"})
    score.tensor(name, name);
  score.scalar("compress_ratio", ratio);
  take("score", score.run());

  Call best(a, ::qsa::topk::contract);
  best.result("logits", all.outputs.at("score.logits"));
  best.result("visible_blocks", all.outputs.at("score.visible_blocks"));
  best.scalar("k", topk / ratio);
  take("topk", best.run());

  Call expand(a, ::qsa::expand::contract);
  expand.result("block_indices", all.outputs.at("topk.block_indices"));
  for (const char* name : {"query_positions", "sequence_lengths", "token_to_req"})
    expand.tensor(name, name);
  expand.scalar("compress_ratio", ratio);
  expand.scalar("token_topk", topk);
  take("expand", expand.run());

  Call attend(a, ::qsa::attend::contract);
  for (const char* name : {"q", "k_cache", "v_cache"})
    attend.tensor(name, std::string("attend.") + name);
  attend.result("logical_indices", all.outputs.at("expand.indices"));
  attend.tensor("block_table", "block_table");
  attend.tensor("token_to_req", "token_to_req");
  take("attend", attend.run());
  return all;
}

const Registration registered("qsa.step", step);

}  // namespace
}  // namespace reference
