// SPDX-License-Identifier: Apache-2.0
#include "harness/ops/tq_cards.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "harness/judge/compare.h"
#include "harness/tensors/numbers.h"
#include "harness/tensors/walk.h"
#include "tq/slot.h"

namespace harness {

namespace {

std::vector<double> reals(const Tensor& t) {
  std::vector<double> out;
  walk(t, [&](int64_t, const std::byte* p) { out.push_back(decode_real(t.dtype, p)); });
  return out;
}

int64_t scalar(const Case& c, std::string_view name, int64_t absent) {
  const auto it = c.scalars.find(name);
  return it == c.scalars.end() ? absent : std::strtoll(it->second.c_str(), nullptr, 10);
}

}  // namespace

bool flag_of(const Case& c, std::string_view name) {
  const auto it = c.scalars.find(name);
  return it != c.scalars.end() && it->second != "0" && it->second != "false";
}

void check_rotation(const Case& c, const toolkit::Contract& contract) {
  const auto pi = c.inputs.find("Pi");
  if (pi == c.inputs.end() || flag_of(c, "key_fp8")) return;
  const int64_t dim = pi->second.shape[0];
  const std::vector<double> m = reals(pi->second);
  if (const auto t = c.inputs.find("PiT"); t != c.inputs.end()) {
    const std::vector<double> other = reals(t->second);
    for (int64_t i = 0; i < dim; ++i)
      for (int64_t j = 0; j < dim; ++j)
        if (!(m[size_t(i * dim + j)] == other[size_t(j * dim + i)]))
          throw toolkit::Violation(contract.op, "PiT", "the transpose of Pi",
                                   number_text(other[size_t(j * dim + i)]) + " at [" + std::to_string(j) + "," +
                                       std::to_string(i) + "] where Pi has " + number_text(m[size_t(i * dim + j)]));
  }
  double largest = 0;
  int64_t row = 0, column = 0;
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t j = i; j < dim; ++j) {
      double dot = i == j ? -1 : 0;
      for (int64_t k = 0; k < dim; ++k) dot += m[size_t(i * dim + k)] * m[size_t(j * dim + k)];
      if (std::fabs(dot) <= largest) continue;  // a NaN goes on
      largest = std::fabs(dot);
      row = i;
      column = j;
      if (std::isnan(dot)) i = j = dim;
    }
  if (largest < 1e-5) return;
  throw toolkit::Violation(contract.op, "Pi", "an orthogonal matrix, max |Pi Pi^T - I| < 1e-05",
                           number_text(largest) + " at [" + std::to_string(row) + "," + std::to_string(column) + "]");
}

std::vector<std::string> cache_findings(const Case& c) {
  std::vector<std::string> out;
  const Tensor &table = c.inputs.at("block_table"), &cache = c.inputs.at("kv_cache");
  const auto lens = c.inputs.find("seq_lens");
  const int64_t width = table.shape[1], page = cache.shape[1];
  int64_t outside = 0;
  std::string first;
  for (int64_t b = 0; b < table.shape[0]; ++b) {
    int64_t tokens = width * page;
    if (lens == c.inputs.end()) {
      tokens = std::min(tokens, scalar(c, "tokens", tokens));
    } else {
      const int64_t length = lens->second.integer(b);
      if (length > tokens)
        out.push_back("batch " + std::to_string(b) + ": seq_lens " + std::to_string(length) + " is beyond the table's " +
                      std::to_string(tokens) + " tokens; what is beyond is masked");
      if (length < 0)
        out.push_back("batch " + std::to_string(b) + ": seq_lens " + std::to_string(length) + " is below 0, taken as 0");
      tokens = std::clamp<int64_t>(length, 0, tokens);
    }
    for (int64_t w = 0; w < (tokens + page - 1) / page; ++w) {
      const int64_t block = table.integer(b * width + w);
      if (block >= 0 && block < cache.shape[0]) continue;
      if (outside++ == 0) first = "batch " + std::to_string(b) + ", entry " + std::to_string(w) + ": " + std::to_string(block);
    }
  }
  if (outside)
    out.push_back(std::to_string(outside) + " used block ids outside [0," + std::to_string(cache.shape[0]) +
                  "), first at " + first + "; their tokens are masked");
  return out;
}

std::string place_of(int64_t linear, const std::vector<std::pair<const char*, int64_t>>& dims) {
  std::string text;
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t size = std::max<int64_t>(dims[i].second, 1);
    text = std::string(dims[i].first) + " " + std::to_string(linear % size) + (text.empty() ? "" : ", ") + text;
    linear /= size;
  }
  return text;
}

std::string block_place(const Case& c, int64_t sequence, int64_t token) {
  const Tensor &table = c.inputs.at("block_table"), &cache = c.inputs.at("kv_cache");
  const int64_t page = cache.shape[1], entry = token / page;
  if (entry >= table.shape[1]) return "beyond the table";
  return "block " + std::to_string(table.integer(sequence * table.shape[1] + entry)) + ", position " +
         std::to_string(token % page);
}

int64_t last_dim(const Case& c, std::string_view tensor) { return c.inputs.find(tensor)->second.shape.back(); }

int64_t live_tokens(const Case& c) {
  const Tensor &table = c.inputs.at("block_table"), &cache = c.inputs.at("kv_cache"), &lens = c.inputs.at("seq_lens");
  int64_t tokens = 0;
  for (int64_t b = 0; b < table.shape[0]; ++b)
    tokens += std::clamp<int64_t>(lens.integer(b), 0, table.shape[1] * cache.shape[1]);
  return tokens;
}

int64_t used_slot_bytes(const Case& c, int64_t dim) {
  return scalar(c, "key_packed_size", 0) + tq::packed_bytes(dim, scalar(c, "value_quant_bits", 4)) + 4;
}

double tensor_bytes(const Case& c, std::string_view name) {
  const auto it = c.inputs.find(name);
  if (it == c.inputs.end()) return 0;
  double bytes = toolkit::bytes_of(it->second.dtype);
  for (size_t d = 0; d < it->second.shape.size(); ++d)
    if (it->second.strides[d] != 0 || it->second.shape[d] == 0) bytes *= double(it->second.shape[d]);
  return bytes;
}

TensorMap oracle_outputs(const Case& c) {
  const HostCall call(c);
  const toolkit::Args args(find_card(c.op)->contract(), call.call());
  const reference::Result result = reference::find(c.op)(args);
  TensorMap outputs;
  for (const toolkit::OutputSpec& spec : args.contract().outputs(args)) {
    const reference::Output& truth = result.outputs.find(spec.name)->second;
    Tensor t = make_tensor(spec.dtype, spec.shape);
    for (int64_t i = 0; i < t.count(); ++i)
      t.set_real(i, truth.judged.empty() || truth.judged[size_t(i)] ? truth.value[size_t(i)] : NAN);
    outputs.emplace(spec.name, std::move(t));
  }
  for (const toolkit::TensorSpec& spec : args.contract().tensors) {
    if (spec.role != toolkit::Role::in_place) continue;
    Tensor t = c.inputs.find(spec.name)->second.packed();
    const auto& bytes = result.outputs.find(spec.name)->second.bytes;
    std::memcpy(t.data(), bytes.data(), bytes.size());
    outputs.emplace(spec.name, std::move(t));
  }
  return outputs;
}

bool plant_altered(const Case& c, TensorMap& outputs, const std::function<bool(Case&)>& alter) {
  Case altered = c;
  if (!alter(altered)) return false;
  const TensorMap right = oracle_outputs(c);
  TensorMap wrong = oracle_outputs(altered);
  bool changed = false;
  for (auto& [name, tensor] : outputs) {
    const auto it = wrong.find(name);
    if (it == wrong.end()) continue;
    const Tensor& before = right.find(name)->second;
    const size_t bytes = size_t(before.count() * toolkit::bytes_of(before.dtype));
    changed = changed || std::memcmp(before.data(), it->second.data(), bytes) != 0;
    tensor = it->second;
  }
  return changed;
}

Case with_own(const Case& c, const char* tensor) {
  Case own = c;
  own.inputs[tensor] = c.inputs.at(tensor).packed();
  return own;
}

void each_slot(const Tensor& cache, const std::function<void(std::byte*, int64_t)>& visit) {
  for (int64_t b = 0; b < cache.shape[0]; ++b)
    for (int64_t s = 0; s < cache.shape[1]; ++s)
      for (int64_t h = 0; h < cache.shape[2]; ++h) visit(cache.data() + cache.at({b, s, h, 0}), cache.strides[3]);
}

bool flip_norm_correction(Case& c) {
  if (flag_of(c, "key_fp8")) return false;
  c.scalars["norm_correction"] = flag_of(c, "norm_correction") ? "0" : "1";
  return true;
}

bool swap_value_nibbles(Case& c) {
  if (scalar(c, "value_quant_bits", 0) != 4) return false;
  const int64_t first = scalar(c, "key_packed_size", 0), last = used_slot_bytes(c, c.inputs.count("query") ? last_dim(c, "query") : scalar(c, "head_dim", 0)) - 4;
  c = with_own(c, "kv_cache");
  each_slot(c.inputs["kv_cache"], [&](std::byte* slot, int64_t step) {
    for (int64_t i = first; i < last; ++i) slot[i * step] = slot[i * step] >> 4 | slot[i * step] << 4;
  });
  return last > first;
}

bool drop_zero_points(Case& c) {
  const int64_t used = used_slot_bytes(c, c.inputs.count("query") ? last_dim(c, "query") : scalar(c, "head_dim", 0));
  c = with_own(c, "kv_cache");
  each_slot(c.inputs["kv_cache"], [&](std::byte* slot, int64_t step) {
    slot[(used - 2) * step] = slot[(used - 1) * step] = std::byte{0};
  });
  return true;
}

bool transpose_rotation(Case& c) {
  if (flag_of(c, "key_fp8")) return false;
  Tensor pi = c.inputs.at("Pi");
  bool symmetric = true;
  for (int64_t i = 0; i < pi.shape[0]; ++i)
    for (int64_t j = 0; j < i; ++j)
      symmetric = symmetric && pi.real(i * pi.shape[1] + j) == pi.real(j * pi.shape[1] + i);
  if (symmetric) return false;
  std::swap(pi.strides[0], pi.strides[1]);
  c.inputs["Pi"] = pi;
  c.inputs.erase("PiT");
  return true;
}

}  // namespace harness
