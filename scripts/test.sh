#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs all tests but the slow labels (fatbin, mutants, fuzz). No GPU needed.
# usage: scripts/test.sh [extra ctest arguments, e.g. -R replay]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh
case $PWD in *[[:space:]]*)
  say "error: the tests run the tools through a shell and need a path without blanks, got '$PWD'; move the checkout"
  exit 2
  ;;
esac

install_packages yes
find_nvcc
mkdir -p build
say "build: into build/release"
configure_and_build build/release
say "tests: ctest without the labels fatbin, mutants, fuzz"
status=0
ctest --test-dir build/release -j "$(nproc)" --output-on-failure -LE 'fatbin|mutants|fuzz' "$@" || status=$?
if [ "$status" = 0 ]; then say "PASS: all tests"; else say "FAIL: see the tests named above"; fi
exit "$status"
