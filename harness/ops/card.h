// SPDX-License-Identifier: Apache-2.0
// An op card: all that the tools know about one op beyond its contract - axes, generator, judge, cost, planted faults.
// One file an op, harness/ops/qsa/expand.cpp, which registers itself with HARNESS_CARD(ExpandCard).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/verdict.h"
#include "harness/tensors/case.h"
#include "reference/oracle.h"
#include "toolkit/contract.h"

namespace harness {

// One coordinate of a generated case. Axis values are text; a card converts what it needs.
struct Axis {
  std::string_view name;           // "rows"
  std::string_view default_value;  // "4"
  std::string_view what;           // one line with its unit
};

// Coordinates of a case: axis name -> value; axes that are not set take their default. A case is its seed plus these.
using Coordinates = ScalarMap;

struct SuiteEntry {
  std::string_view name;  // "decode"
  std::string_view axes;  // "rows=4 ctx=2048", what differs from the defaults
};

// Compulsory traffic and arithmetic of a real case: bytes of unique tokens read and of outputs written once, FLOPs of
// attended tokens.
struct Cost {
  double bytes = 0;
  double flops = 0;
};

// A fault that can be put into a right result on purpose: applied to the kernel's outputs in host memory.
struct Fault {
  std::string_view name;  // "last-token-lost"
  std::string_view what;
  bool (*plant)(const Case&, TensorMap& outputs);  // false: this case has no place for it
};

class Card {
 public:
  virtual ~Card() = default;
  virtual const toolkit::Contract& contract() const = 0;

  virtual std::span<const Axis> axes() const = 0;
  // The default verification suite: small on purpose (simt runs it in seconds), each entry one reason to exist.
  virtual std::vector<SuiteEntry> suite() const = 0;
  // Builds the case of these coordinates. Throws std::invalid_argument for a value that makes no case.
  virtual Case generate(const Coordinates& at, uint64_t seed) const = 0;

  // Completes a case that came from a dump: scalars that follow from given results (head_dim, output_dtype).
  virtual void complete(Case&) const {}
  // Rules that need the data itself (PiT really Pi's transpose); throws toolkit::Violation.
  virtual void check_data(const Case&) const {}
  // Faults of the input that do not make it illegal, one line each.
  virtual std::vector<std::string> findings(const Case&) const { return {}; }
  // False where judge() asks other oracles than the op's own (a step's stages, each about what it
  // really got): then the whole oracle, the dearest of all, is not asked at all.
  virtual bool wants_oracle() const { return true; }
  // Inputs whose first dimension counts rows as that of every output does, a row's outputs depending
  // on its own rows of these alone: then some rows can be judged instead of all. Empty: only the
  // whole can.
  virtual std::vector<std::string_view> row_inputs() const { return {}; }
  // Compares outputs (by contract name; in_place tensors too) with the oracle's. The default judges every output in
  // `actual` element by element: real within bounds, integers and bytes exactly.
  virtual Verdict judge(const Case&, const reference::Result& oracle, const TensorMap& actual) const;
  // Names an element in the op's terms: "row 3, head 2, dim 17". Default: its index.
  virtual std::string place(const Case&, std::string_view output, int64_t linear) const;

  virtual Cost cost(const Case&) const = 0;
  virtual std::vector<Fault> faults() const { return {}; }

  std::string_view op() const { return contract().op; }
};

// All cards, sorted by op. The list is complete before main.
const std::vector<const Card*>& cards();
const Card* find_card(std::string_view op);

class CardRegistration {
 public:
  explicit CardRegistration(const Card* card);
};

}  // namespace harness

#define HARNESS_CARD(Type)                 \
  namespace {                              \
  const Type card;                         \
  const ::harness::CardRegistration registered(&card); \
  }
