#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: scripts_test.sh SOURCE_DIR
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/my tools"  # a path with a blank
mkdir -p "$root" "$work/stubs"
cp -r "$source/scripts" "$root/"

stub() { printf '#!/bin/sh\n%s\n' "$2" >"$work/stubs/$1" && chmod +x "$work/stubs/$1"; }
stub dpkg-query 'echo "install ok installed"'
# $CODES: what qsa-verify, qsa-bench and tq-bench exit with.
stub cmake '[ "$1" = --build ] || exit 0
bin=$2/bin
mkdir -p "$bin"
set -- $CODES
for tool in qsa-verify qsa-bench tq-bench; do
  printf "#!/bin/sh\necho \"$tool \$*\"; exit $1\n" >"$bin/$tool"
  chmod +x "$bin/$tool"
  shift
done'

failed=0
# expect CODE TEXT CODES [HOME] [SCRIPT]: the script, run from another folder, exits with CODE and prints TEXT.
expect() {
  local code=0
  (cd / && env -u CCACHE_DIR -u XDG_CACHE_HOME PATH="$work/stubs:$PATH" CODES="$3" HOME="${4:-$work}" \
    "$root/scripts/${5:-quickstart.sh}") >"$work/said" 2>&1 || code=$?
  if [ "$code" != "$1" ] || ! grep -qF -- "$2" "$work/said"; then
    echo "expected exit $1 and '$2', got exit $code and:" && cat "$work/said"
    failed=1
  fi
}

expect 0 "PASS: all ops verified; start reading at out/quickstart/verify.md" "0 0 0"
expect 0 "tq-bench run --csv out/quickstart/tq-bench.csv --md out/quickstart/tq-bench.md" "0 0 0"
expect 1 "qsa-verify 1, qsa-bench 0, tq-bench 3" "1 0 3"
expect 3 "qsa-verify 0, qsa-bench 3, tq-bench 0" "0 3 0"
expect 5 "qsa-verify 0, qsa-bench 0, tq-bench 5" "0 0 5"
expect 0 "using $root/build/ccache" "0 0 0" /proc/no-home
expect 2 "need a path without blanks, got '$root'" "" "$work" test.sh

# Root on a machine whose archive lacks the optional packages (plain Debian 12): the tests go on without them.
stub id 'echo 0'
stub apt-get 'exit 0'
stub apt-cache 'exit 100'
stub dpkg-query 'case "$3" in clang-*|lld-*) exit 1 ;; *) echo "install ok installed" ;; esac'
PATH="$work/stubs:$PATH" bash -euo pipefail -c '. "$1"; install_packages yes' - "$root/scripts/packages.sh" >"$work/said" &&
  grep -q "no archive here has clang-22 lld-22 - the tests" "$work/said" || {
  echo "install_packages stopped because an optional package is in no archive"
  failed=1
}

# The revision that rows tell, of a tree without history: given, of an archive, or unknown.
tree=$work/tree
mkdir -p "$tree/apps/cli"
cp "$source/apps/cli/version.cpp.in" "$tree/apps/cli"
# revision GIVEN FILE EXPECTED: FILE is what revision.txt holds.
revision() {
  echo "$2" >"$tree/apps/cli/revision.txt"
  cmake -DSOURCE="$tree" -DOUT="$work/version.cpp" -DVERSION=0 -DGIVEN="$1" -P "$source/apps/cli/version.cmake"
  grep -qF "return \"$3\"" "$work/version.cpp" || {
    echo "expected revision $3, got:" && cat "$work/version.cpp"
    failed=1
  }
}
revision "" "$(cat "$source/apps/cli/revision.txt")" unknown
revision 0123456789ab "" 0123456789ab
revision "" 00112233445566778899aabbccddeeff00112233 001122334455
exit $failed
