// SPDX-License-Identifier: Apache-2.0
// Runs one implementation on a placed case, and judges what came out.
#pragma once

#include <optional>
#include <string>

#include "harness/judge/verdict.h"
#include "harness/ops/card.h"
#include "harness/plugins/device.h"
#include "harness/run/placement.h"
#include "harness/run/sample.h"

namespace harness {

// A case with what its oracle says, computed once for all devices and implementations. `made` has
// to be checked.
class Truth {
 public:
  // `rows` above 0: of a case with more rows only so many are judged (run/sample.h), where its op
  // can be judged by rows; the verdict says so.
  Truth(const Card& card, const Case& made, int64_t rows = 0);
  const Card& card() const { return card_; }
  const Case& made() const { return made_; }
  // Judges results of a kernel or a dump; findings about the input stand in it. Refuses
  // (toolkit::Violation) results whose shape or dtype is not the contract's.
  Verdict judge(const TensorMap& actual) const;
  // Where a dump brings the truth: a verdict becomes a fail where the oracle disagrees with it, and
  // says so.
  void compare_expected(Verdict& verdict) const;

 private:
  Verdict judge_sample(const TensorMap& actual) const;

  const Card& card_;
  const Case& made_;
  std::optional<RowSample> sample_;
  reference::Result oracle_;  // of the sample where there is one
  std::vector<std::string> findings_;
};

// Contract, shapes, scalars and the card's own rules about the data. Throws toolkit::Violation.
void check_case(const Card& card, const Case& made);
// The case has rows at all (no rows: `skip: 0 rows`).
bool has_rows(const Card& card, const Case& made);

// How a run ended without any judging: pass (it ran), unsupported, error; the reason is the
// plugin's own text.
struct Ended {
  Status status = Status::pass;
  std::string reason;
};

// One call, workspace query included; waits until it is done.
Ended run_once(const Device& device, const Implementation& implementation, Placement& placement);

struct Outcome {
  Verdict verdict;
  std::string digest;     // of the results, empty where there are none
  bool survived = false;  // a planted fault was not noticed
};

// The whole of it: place, run, check guard bands, plant (if asked for), judge.
Outcome run_case(const Device& device, const Implementation& implementation, const Truth& truth,
                 const std::optional<Fault>& plant);
// The same for results that are already there.
Outcome judge_results(const Truth& truth, TensorMap results, const std::optional<Fault>& plant,
                      const std::vector<std::string>& trespasses = {});

// FNV-1a over names, shapes and bits; the same for the same results on any host.
std::string digest_of(const TensorMap& results);

}  // namespace harness
