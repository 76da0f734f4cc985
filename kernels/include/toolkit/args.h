// SPDX-License-Identifier: Apache-2.0
// Reads a tk_call by names, with the defaults of a contract, and checks it against the contract.
#pragma once

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "toolkit/contract.h"
#include "toolkit/dtype.h"

namespace toolkit {

inline std::string to_text(const Shape& s) {
  std::string t = "[";
  for (size_t i = 0; i < s.size(); ++i) t += (i ? "," : "") + std::to_string(s[i]);
  return t + "]";
}

// A tensor of a call. Cheap to copy; does not own.
class TensorView {
 public:
  TensorView() = default;
  explicit TensorView(const tk_tensor* t) : t_(t) {}
  explicit operator bool() const { return t_ != nullptr; }
  std::string_view name() const { return t_->name; }
  tk_dtype dtype() const { return t_->dtype; }
  tk_dtype fp8_flavour() const { return t_->fp8_flavour; }
  int rank() const { return t_->rank; }
  int64_t size(int dim) const { return t_->shape[dim]; }
  int64_t stride(int dim) const { return t_->strides[dim]; }  // elements
  Shape shape() const { return Shape(t_->shape, t_->shape + t_->rank); }
  int64_t count() const {  // elements; 1 for rank 0
    int64_t n = 1;
    for (int i = 0; i < rank(); ++i) n *= size(i);
    return n;
  }
  template <class T>
  T* data() const {
    return static_cast<T*>(t_->data);
  }
  const tk_tensor& raw() const { return *t_; }

 private:
  const tk_tensor* t_ = nullptr;
};

class Args {
 public:
  Args(const Contract& contract, const tk_call& call) : contract_(&contract), call_(&call) {}

  const Contract& contract() const { return *contract_; }
  const tk_call& call() const { return *call_; }

  // The tensor, or an empty view where it is absent.
  TensorView find(std::string_view name) const {
    for (uint32_t i = 0; i < call_->tensor_count; ++i)
      if (call_->tensors[i]->name == name) return TensorView(call_->tensors[i]);
    return {};
  }
  // The tensor; Violation where it is absent.
  TensorView tensor(std::string_view name) const {
    TensorView t = find(name);
    if (!t) throw Violation(contract_->op, name, "a tensor of that name", "none");
    return t;
  }
  bool has(std::string_view name) const { return bool(find(name)); }

  // Scalars: as given, else the contract's default; Violation where there is neither or the text is no such value.
  bool given(std::string_view name) const { return find_scalar(name) != nullptr; }
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  bool boolean(std::string_view name) const;
  std::string_view text(std::string_view name) const;

  // The whole contract: presence, dtypes, shape patterns, scalars, then Contract::check. Throws Violation.
  // Outputs are checked only where `with_outputs` (a dump of inputs has none).
  void check(bool with_outputs) const;

 private:
  const tk_scalar* find_scalar(std::string_view name) const {
    for (uint32_t i = 0; i < call_->scalar_count; ++i)
      if (call_->scalars[i]->name == name) return call_->scalars[i];
    return nullptr;
  }
  const ScalarSpec& spec(std::string_view name) const {
    for (const auto& s : contract_->scalars)
      if (s.name == name) return s;
    throw Violation(contract_->op, name, "a scalar of the contract", "an unknown name (a fault of the program)");
  }

  const Contract* contract_;
  const tk_call* call_;
};

inline std::string_view Args::text(std::string_view name) const {
  if (const tk_scalar* s = find_scalar(name)) return s->text;
  const ScalarSpec& d = spec(name);
  if (!d.default_text) throw Violation(contract_->op, name, "a scalar of that name", "none");
  return d.default_text;
}

// Written as Python and JSON write them: strtoll and strtod would also take blanks before the number.
inline bool starts_number(const std::string& t) {
  return !t.empty() && !std::isspace(static_cast<unsigned char>(t[0]));
}

inline int64_t Args::integer(std::string_view name) const {
  const std::string t(text(name));
  char* end = nullptr;
  errno = 0;
  const long long v = std::strtoll(t.c_str(), &end, 10);
  if (!starts_number(t) || *end || errno) throw Violation(contract_->op, name, "an integer", "'" + t + "'");
  return v;
}

inline bool Args::boolean(std::string_view name) const {
  const std::string_view t = text(name);
  if (t == "1" || t == "true") return true;
  if (t == "0" || t == "false") return false;
  throw Violation(contract_->op, name, "0, 1, true or false", "'" + std::string(t) + "'");
}

inline double Args::real(std::string_view name) const {
  const std::string t(text(name));
  char* end = nullptr;
  const double v = std::strtod(t.c_str(), &end);
  if (!starts_number(t) || *end) throw Violation(contract_->op, name, "a number", "'" + t + "'");
  return v;
}

inline void Args::check(bool with_outputs) const {
  std::map<std::string, std::pair<int64_t, std::string>, std::less<>> bound;  // letter -> size, where it came from
  for (const TensorSpec& spec : contract_->tensors) {
    const bool is_output = spec.role == Role::output || spec.role == Role::optional_output;
    const TensorView t = find(spec.name);
    if (!t) {
      if (spec.role == Role::input || spec.role == Role::in_place || (with_outputs && spec.role == Role::output))
        tensor(spec.name);  // throws
      continue;
    }
    if (is_output && !with_outputs) continue;
    if (!(spec.dtypes & set_of(t.dtype())))
      throw Violation(contract_->op, spec.name, "dtype " + names_of(spec.dtypes), std::string(name_of(t.dtype())));
    if (is_output || spec.shape.empty()) continue;
    const std::string got = "shape " + to_text(t.shape());
    const std::string want = "shape [" + std::string(spec.shape) + "]";
    std::string_view rest = spec.shape;
    int dim = 0;
    for (;; ++dim) {
      const size_t comma = rest.find(',');
      const std::string part(rest.substr(0, comma));
      if (dim >= t.rank()) throw Violation(contract_->op, spec.name, want, got);
      if (part != "?") {
        const bool number = part[0] >= '0' && part[0] <= '9';
        if (number && t.size(dim) != std::atoll(part.c_str())) throw Violation(contract_->op, spec.name, want, got);
        if (!number) {
          auto [it, fresh] = bound.try_emplace(part, t.size(dim), std::string(spec.name));
          if (!fresh && it->second.first != t.size(dim))
            throw Violation(contract_->op, spec.name,
                            want + " with " + part + " = " + std::to_string(it->second.first) + " as in " +
                                it->second.second,
                            got);
        }
      }
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    if (dim + 1 != t.rank()) throw Violation(contract_->op, spec.name, want, got);
  }
  for (const ScalarSpec& s : contract_->scalars) {
    if (!given(s.name) && s.default_text && !*s.default_text) continue;
    if (s.kind == ScalarKind::integer) integer(s.name);
    if (s.kind == ScalarKind::boolean) boolean(s.name);
    if (s.kind == ScalarKind::real) real(s.name);
    if (s.kind == ScalarKind::text) text(s.name);
  }
  if (contract_->check) contract_->check(*this);
  if (!with_outputs) return;
  for (const OutputSpec& o : contract_->outputs(*this)) {
    const TensorView t = find(o.name);
    if (!t) continue;  // an optional output that was not asked for
    if (t.shape() != o.shape || t.dtype() != o.dtype)
      throw Violation(contract_->op, o.name, std::string(name_of(o.dtype)) + " " + to_text(o.shape),
                      std::string(name_of(t.dtype())) + " " + to_text(t.shape()));
  }
}

}  // namespace toolkit
