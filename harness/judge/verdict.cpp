// SPDX-License-Identifier: Apache-2.0
#include "harness/judge/verdict.h"

#include <algorithm>

namespace harness {

std::string_view name_of(Status s) {
  switch (s) {
    case Status::pass:
      return "pass";
    case Status::fail:
      return "fail";
    case Status::error:
      return "error";
    case Status::timeout:
      return "timeout";
    case Status::crash:
      return "crash";
    case Status::skip:
      return "skip";
    case Status::unsupported:
      return "unsupported";
    case Status::inconclusive:
      return "inconclusive";
    case Status::impossible:
      return "impossible";
  }
  return "?";
}

namespace {
// The order in which one status hides another: as the exit codes, and a judged output beside a
// skipped one counts.
int weight(Status s) {
  switch (s) {
    case Status::skip:
      return 0;
    case Status::unsupported:
      return 1;
    case Status::pass:
      return 2;
    case Status::impossible:
      return 3;
    case Status::inconclusive:
      return 4;
    case Status::timeout:
      return 5;
    case Status::error:
      return 6;
    case Status::crash:
      return 7;
    case Status::fail:
      return 8;
  }
  return 9;
}
}  // namespace

void fold(Verdict& into, const Verdict& part) {
  if (weight(part.status) > weight(into.status)) {
    into.status = part.status;
    into.reason = part.reason;
  } else if (part.status == into.status && !part.reason.empty() && part.reason != into.reason) {
    into.reason += (into.reason.empty() ? "" : "; ") + part.reason;
  }
  into.notes.insert(into.notes.end(), part.notes.begin(), part.notes.end());
  for (const std::string& f : part.findings)
    if (std::find(into.findings.begin(), into.findings.end(), f) == into.findings.end())
      into.findings.push_back(f);
  into.judged += part.judged;
  into.mismatches += part.mismatches;
  into.nonfinite += part.nonfinite;
  into.unwritten += part.unwritten;
  into.err_max_abs = std::max(into.err_max_abs, part.err_max_abs);
  into.err_rel_l2 = std::max(into.err_rel_l2, part.err_rel_l2);
  if (part.used_share > into.used_share || into.bound == 0) into.bound = part.bound;
  into.used_share = std::max(into.used_share, part.used_share);
  if (into.first_bad.empty()) into.first_bad = part.first_bad;
}

}  // namespace harness
