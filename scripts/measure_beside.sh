#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times our kernels, of each shape the one that serves it, on the shapes of a peer's file (`op,shape,cold_us,warm_us`) and
# of a file of targets (datasets/targets), and writes all on one page. Which case of ours a peer's shape is, says
# datasets/peers/triton.csv; shapes without a case are named. One process a tool: --isolate gives each case its own.
# Of a case with more than 64 rows 64 are judged before it is timed, as its row says; --judge-rows N for another number.
# usage: scripts/measure_beside.sh PEER.csv OUT [--targets FILE] [--bin FOLDER] [further flags of `run`, e.g. --impl portable]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n 's/^# usage: /usage: /p' "$0"; exit 2; }
peer=$1 out=$2 bin=build/release/bin targets=
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --targets) targets=$2; shift 2 ;;
    --bin) bin=$2; shift 2 ;;
    *) break ;;
  esac
done
for file in "$peer" ${targets:+"$targets"}; do
  [ -r "$file" ] || { echo "error: $file: expected a readable file: times of a peer, or targets"; exit 2; }
done
case " $* " in *" --impl "* | *" --impl="*) ;; *) set -- --impl best "$@" ;; esac
case " $* " in *" --judge-rows "* | *" --judge-rows="*) ;; *) set -- --judge-rows 64 "$@" ;; esac
mkdir -p "$out"

# "op axis=value axis=value ..." of each shape. Shapes and patterns are compared word by word: "{R}" is any number; an
# axis without a value is as it is by default. Where several patterns fit, the last one counts.
{
  awk -F, '
    NR == FNR { if (FNR > 1) { op[++n] = $1; pattern[n] = $2; ours[n] = $3; axes[n] = substr($0, length($1 $2 $3) + 4) } next }
    FNR > 1 && $1 != "empty" {
      words = split($2, word, /[|=\/]/); line = ""
      for (i = 1; i <= n; ++i) {
        if (op[i] != $1 || split(pattern[i], want, /[|=\/]/) != words) continue
        fits = 1; filled = axes[i]
        for (w = 1; w <= words && fits; ++w)
          if (want[w] ~ /^\{[A-Z]\}$/ && word[w] ~ /^[0-9]+$/) {
            letter = substr(want[w], 2, 1); gsub("\\{" letter "\\}", word[w], filled)
          } else fits = want[w] == word[w]
        if (fits && filled !~ /=[^ ]*\{/) line = ours[i] " " filled
      }
      if (line != "") print line; else print "no case of ours: " $1 " " $2 > "/dev/stderr"
    }' datasets/peers/triton.csv "$peer"
  # The first field is a name, which may hold commas in quotes.
  [ -z "$targets" ] || sed -n '2,$ { s/^"[^"]*",//; t found; s/^[^,]*,//; :found; s/^\([^,]*\),\([^,]*\),.*/\1 \2/p }' "$targets"
} | sed 's/ [a-z_]*= / /g; s/ [a-z_]*=$//' >"$out/cases.txt"

worst=0
for tool in qsa-bench tq-bench; do
  family=${tool%-bench}
  grep -q "^$family\." "$out/cases.txt" || continue
  status=0
  "$bin/$tool" run --cases "$out/cases.txt" --csv "$out/ours.csv" -q "$@" || status=$?
  [ "$status" -lt 128 ] || exit "$status"
  case $status in 0 | 77) ;; 3) [ "$worst" != 0 ] || worst=3 ;; *) worst=$status ;; esac
done
cp "$peer" "$out/peer.csv"
"$bin/qsa-bench" report "$out/ours.csv" --peer "$out/peer.csv" ${targets:+--targets "$targets"} \
  --html "$out/report.html" --md "$out/report.md"
exit "$worst"
