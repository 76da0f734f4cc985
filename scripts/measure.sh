#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The folder of this machine in results/baselines: its roofs and every preset of qsa-bench and tq-bench on its largest
# GPU, and a page of all of it. A preset is one process; where that breaks, its other cases get one each. An interrupted
# run goes on where it was. Without a GPU: exit 77. A tree without its history is told its revision by TOOLKIT_GIT_SHA.
# usage: scripts/measure.sh [--bin FOLDER] [--out FOLDER] [further flags of `run`, e.g. --l2 both]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/packages.sh

bin= out=
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) break ;;
  esac
done
if [ -z "$bin" ]; then
  install_packages no
  find_nvcc
  mkdir -p build
  say "build: into build/release"
  configure_and_build build/release all-tools
  bin=build/release/bin
fi

# "cuda:0 NVIDIA H200" of the device with the most multiprocessors among those whose times count.
best=$("$bin/qsa-bench" env | awk '
  /^  [a-z]+:[0-9]+ / { id = $1; name = $0; sub(/^ *[^ ]+ +/, "", name); sub(/,.*/, "", name) }
  / multiprocessors,/ && /its times count/ { if ($3 > most) { most = $3; print id, name } }' | tail -n 1)
if [ -z "$best" ]; then
  say "NOTHING MEASURED: no GPU here; \`qsa-bench env\` says why each backend is absent"
  exit 77
fi
device=${best%% *}
name=${best#* }
out=${out:-results/baselines/$(tr '[:upper:]' '[:lower:]' <<<"$name" | tr -cs '[:alnum:]\n' '-')}
mkdir -p "$out"
say "measure: $device ($name), into $out"

worst=0
for tool in qsa-bench tq-bench; do
  sha=$("$bin/$tool" --version | sed -n 's/.*(\([^)]*\)).*/\1/p')
  part=$out/$tool.$sha.part  # of this very build; becomes the baseline when it is whole
  for preset in $("$bin/$tool" list | awk '$1 == "preset" { print $2 }'); do
    say "$tool: $preset"
    before=$(stat -c %s "$part" 2>/dev/null || echo 0)
    status=0
    "$bin/$tool" run -p "$preset" -d "$device" --roofs --resume --csv "$part" "$@" || status=$?
    case $status in
      5 | 134 | 136 | 137 | 139)  # a case broke the GPU's context or the process: rows behind it are not to blame
        [ ! -e "$part" ] || truncate -s "$before" "$part"
        status=0
        "$bin/$tool" run -p "$preset" -d "$device" --isolate --roofs --resume --csv "$part" "$@" || status=$? ;;
    esac
    # 130 and 143: interrupted. 3 is noise, 77 a preset without a case here; both have their rows.
    [ "$status" -lt 128 ] || exit "$status"
    case $status in 0 | 77) ;; 3) [ "$worst" != 0 ] || worst=3 ;; *) worst=$status ;; esac
  done
  mv "$part" "$out/$tool.csv"
  say "wrote: $out/$tool.csv"
done
"$bin/qsa-bench" report "$out"/{qsa,tq}-bench.csv --html "$out/report.html" --md "$out/report.md"
exit "$worst"
