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
rm -f "$out"/{verify,bench,tq-bench}.{csv,md}  # the tools append; a quickstart starts anew
say "build: into build/release"
configure_and_build build/release all-tools
bin=build/release/bin

say "verify: every op, default suite"
status=0
$bin/qsa-verify run --csv "$out/verify.csv" --md "$out/verify.md" || status=$?
say "bench: default cases of the QSA ops, then of the TurboQuant ops"
bench=0
$bin/qsa-bench run --csv "$out/bench.csv" --md "$out/bench.md" || bench=$?
tq=0
$bin/tq-bench run --csv "$out/tq-bench.csv" --md "$out/tq-bench.md" || tq=$?
for name in verify bench tq-bench; do say "wrote: $out/$name.csv and $out/$name.md"; done
if [ "$status$bench$tq" = 000 ]; then
  say "PASS: all ops verified; start reading at $out/verify.md"
  exit 0
fi
say "FAIL: exit codes (README lists them): qsa-verify $status, qsa-bench $bench, tq-bench $tq; see $out/verify.md"
for code in $status $bench $tq; do [ "$code" = 0 ] || exit "$code"; done
