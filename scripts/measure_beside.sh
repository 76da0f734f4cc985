#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times our kernels on the shapes of a peer's file (`op,shape,cold_us,warm_us`), and writes both on one page. Which case
# of ours a shape is, says datasets/peers/triton.csv. A case runs in a process of its own. Shapes without a case are named.
# usage: scripts/measure_beside.sh PEER.csv OUT [--bin FOLDER] [further flags of `run`, e.g. --impl sm_80]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0"; exit 2; }
peer=$1 out=$2 bin=build/release/bin
shift 2
if [ "${1:-}" = --bin ]; then bin=$2; shift 2; fi
[ -r "$peer" ] || { echo "error: $peer: expected a readable file: the peer's times"; exit 2; }
mkdir -p "$out"

# "op|axis=value axis=value ..." of each shape. Shapes and patterns are compared word by word: "{R}" is any number.
cases=$(awk -F, '
  NR == FNR { if (FNR > 1) { op[++n] = $1; pattern[n] = $2; ours[n] = $3; axes[n] = substr($0, length($1 $2 $3) + 4) } next }
  FNR > 1 && $1 != "empty" {
    words = split($2, word, /[|=\/]/)
    for (i = 1; i <= n; ++i) {
      if (op[i] != $1 || split(pattern[i], want, /[|=\/]/) != words) continue
      fits = 1; filled = axes[i]
      for (w = 1; w <= words && fits; ++w)
        if (want[w] ~ /^\{[A-Z]\}$/ && word[w] ~ /^[0-9]+$/) {
          letter = substr(want[w], 2, 1); gsub("\\{" letter "\\}", word[w], filled)
        } else fits = want[w] == word[w]
      if (fits && filled !~ /=[^ ]*\{/) { print ours[i] "|" filled; next }
    }
    print "no case of ours: " $1 " " $2 > "/dev/stderr"
  }' datasets/peers/triton.csv "$peer" | awk '!seen[$0]++')

worst=0
while IFS='|' read -r op axes; do
  tool=qsa-bench; case $op in tq.*) tool=tq-bench ;; esac
  flags=()
  for axis in $axes; do
    case $axis in
      *=) continue ;;  # as it is by default
      lens=*\**)       # lens=8192*8: eight of them
        value=${axis#lens=}; list=$(printf "${value%\**},%.0s" $(seq "${value#*\*}")); axis="lens=[${list%,}]" ;;
    esac
    flags+=(-a "$axis")
  done
  status=0
  "$bin/$tool" run "$op" "${flags[@]}" --csv "$out/ours.csv" -q "$@" || status=$?
  [ "$status" -lt 128 ] || exit "$status"
  case $status in 0 | 77) ;; 3) [ "$worst" != 0 ] || worst=3 ;; *) worst=$status ;; esac
done <<<"$cases"
cp "$peer" "$out/peer.csv"
"$bin/qsa-bench" report "$out/ours.csv" --peer "$out/peer.csv" --html "$out/report.html" --md "$out/report.md"
exit "$worst"
