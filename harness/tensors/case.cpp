// SPDX-License-Identifier: Apache-2.0
#include "harness/tensors/case.h"

#include <cstdlib>

namespace harness {

namespace {

// Every form that the text has: booleans are integers, integers are reals.
void convert(const std::string& text, tk_scalar& s) {
  if (text == "true" || text == "false") {
    s.integer = text == "true";
    s.real = double(s.integer);
    return;
  }
  char* end = nullptr;
  const long long i = std::strtoll(text.c_str(), &end, 10);
  if (!text.empty() && !*end) s.integer = i;
  const double d = std::strtod(text.c_str(), &end);
  if (!text.empty() && !*end) s.real = d;
}

}  // namespace

namespace {
const TensorMap kNoOutputs;
}

HostCall::HostCall(const Case& c) : HostCall(c, kNoOutputs) {}

HostCall::HostCall(const Case& c, const TensorMap& outputs) {
  for (const auto& [name, tensor] : c.inputs)
    if (!outputs.contains(name))
      add(name, tensor);  // an in_place tensor is given once, as its result
  for (const auto& [name, tensor] : outputs) add(name, tensor);
  for (const auto& [name, text] : c.scalars) {
    auto s = std::make_unique<tk_scalar>();
    s->struct_size = sizeof(tk_scalar);
    s->name = name.c_str();
    s->text = text.c_str();
    convert(text, *s);
    scalar_pointers_.push_back(s.get());
    scalars_.push_back(std::move(s));
  }
  call_.struct_size = sizeof(tk_call);
  call_.op = c.op.c_str();
  call_.tensors = tensor_pointers_.data();
  call_.tensor_count = uint32_t(tensor_pointers_.size());
  call_.scalars = scalar_pointers_.data();
  call_.scalar_count = uint32_t(scalar_pointers_.size());
}

void HostCall::add(const std::string& name, const Tensor& t) {
  auto out = std::make_unique<tk_tensor>();
  out->struct_size = sizeof(tk_tensor);
  out->dtype = t.dtype;
  out->name = name.c_str();
  out->data = t.storage ? t.data() : nullptr;
  out->shape = t.shape.data();
  out->strides = t.strides.data();
  out->rank = int32_t(t.shape.size());
  out->fp8_flavour = t.fp8_flavour;
  tensor_pointers_.push_back(out.get());
  tensors_.push_back(std::move(out));
}

}  // namespace harness
