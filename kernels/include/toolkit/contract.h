// SPDX-License-Identifier: Apache-2.0
// What an op takes and gives, as data: every op's public header defines one `Contract`. The plugins check calls
// with it, the harness checks dumps and allocates outputs with it, and --help prints it.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "toolkit/plugin.h"

namespace toolkit {

class Args;

using Shape = std::vector<int64_t>;

// A set of dtypes, one bit each.
using DtypeSet = uint32_t;
constexpr DtypeSet set_of(tk_dtype d) { return DtypeSet{1} << d; }
template <class... D>
constexpr DtypeSet dtypes(D... d) {
  return (set_of(d) | ...);
}
constexpr DtypeSet kIndex = dtypes(TK_I32, TK_I64);         // ids, positions, lengths
constexpr DtypeSet kHalf = dtypes(TK_F16, TK_BF16);
constexpr DtypeSet kFloat = dtypes(TK_F16, TK_BF16, TK_F32);
constexpr DtypeSet kAnyDtype = ~DtypeSet{0};

enum class Role : uint8_t { input, optional_input, output, optional_output, in_place };

// Shape patterns: dimensions separated by commas; a number means exactly that, a letter binds on first sight and
// has to agree afterwards ("R,H,D"), "?" is free, "" leaves rank and shape to Contract::check. For outputs the
// pattern is documentation: Contract::outputs computes the shape.
struct TensorSpec {
  std::string_view name;
  Role role;
  DtypeSet dtypes;
  std::string_view shape;
  std::string_view what;  // one line: meaning, and what an invalid value does
};

enum class ScalarKind : uint8_t { integer, real, boolean, text };

struct ScalarSpec {
  std::string_view name;
  ScalarKind kind;
  const char* default_text;  // nullptr: has to be given. "": absent means "derived", see the op's header
  std::string_view what;
};

struct OutputSpec {
  std::string_view name;
  tk_dtype dtype;
  Shape shape;
};

struct Contract {
  std::string_view op;       // "qsa.expand"
  std::string_view summary;  // one line
  std::span<const TensorSpec> tensors;
  std::span<const ScalarSpec> scalars;
  // Rules beyond the patterns above. Throws Violation. Called with all patterns already checked.
  void (*check)(const Args&);
  // Outputs to allocate (in_place tensors are not listed: they are inputs that change). Checked input assumed.
  std::vector<OutputSpec> (*outputs)(const Args&);
};

// A call or a dump that breaks the contract: which tensor or scalar, what was expected, what came.
class Violation : public std::invalid_argument {
 public:
  Violation(std::string_view op, std::string_view name, std::string expected, std::string got)
      : std::invalid_argument(std::string(op) + ": " + std::string(name) + ": expected " + expected + ", got " + got),
        name(name),
        expected(std::move(expected)),
        got(std::move(got)) {}
  std::string name, expected, got;
};

}  // namespace toolkit
