#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh machine to a report: installs packages, builds the tools, verifies every op on the best device that is
# here (simt where there is no GPU), times what can honestly be timed, writes CSV and Markdown, and says where.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

out=${1:-out/quickstart}
install_packages no
find_nvcc
mkdir -p build "$out"
rm -f "$out"/{verify,bench}.{csv,md}  # the tools append; a quickstart starts anew
say "build: into build/release"
configure_and_build build/release all-tools
bin=build/release/bin

say "verify: every op, default suite"
status=0
$bin/qsa-verify run --csv "$out/verify.csv" --md "$out/verify.md" || status=$?
say "bench: default cases"
bench=0
$bin/qsa-bench run --csv "$out/bench.csv" --md "$out/bench.md" || bench=$?
for file in verify.csv verify.md bench.csv bench.md; do say "wrote: $out/$file"; done
if [ "$status" = 0 ] && [ "$bench" = 0 ]; then
  say "PASS: all ops verified; start reading at $out/verify.md"
else
  say "FAIL: qsa-verify exited $status, qsa-bench $bench; see $out/verify.md"
fi
[ "$status" != 0 ] || status=$bench
exit "$status"
