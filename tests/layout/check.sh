#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh ROOT: the rules of the house that a compiler does not see. Prints "file:line: [rule] text" for each breach.
#   sight     who may include whom (contracts <- kernels; contracts <- reference; {plugins, reference} <- harness <- apps)
#   words     no vendor's word and no literal wave width in kernel sources and portable device headers
#   own       no inline function in a .cu file: another file's function of the same name would take its place
#   whole     an op is contract, kernel, oracle, card and test; a probe is contract and kernel
#   places    no file names a folder of one machine
#   licence   the SPDX line comes first
set -u
root=$1
cd "$root" || exit 2
if [ -e .git ]; then files=$(git ls-files); else files=$(find . -type f | sed 's|^\./||' | grep -v '^build'); fi
files=$(echo "$files" | while read -r f; do [ -f "$f" ] && echo "$f"; done)  # removed, but not committed yet
found=0

# matching REGEX [EXCLUDED_REGEX]: files by name.
matching() { echo "$files" | grep -E -- "$1" | grep -Ev -- "${2:-^$}"; }

# breach RULE: reads "file:line:text" lines and reports each.
breach() {
  local line
  while IFS= read -r line; do
    echo "$line" | sed -E "s/^([^:]*:[0-9]*):[[:space:]]*/\1: [$1] /"
    found=1
  done
}

# includes FILE...: "file:line:name" of each include; a name in angle brackets keeps its "<".
includes() {
  [ $# -gt 0 ] || return 0
  grep -HnE '^[[:space:]]*#[[:space:]]*include' "$@" /dev/null |
    sed -E 's/#[[:space:]]*include[[:space:]]*("|)([^">]*)[">].*/\2/; s/^([^:]*:[0-9]*):[[:space:]]*/\1:/'
}

# only ALLOWED_REGEX FILE...: includes that are none of those.
only() {
  local allowed=$1
  shift
  includes "$@" | grep -Ev ":($allowed)\$"
}

# A contract is a header of kernels/include; "qsa/common.h" of the kernels looks like one and is none.
contracts=$(matching '^kernels/include/' | sed 's|^kernels/include/||; s/\./\\./g' | paste -sd'|')
standard='<[a-z_0-9]+'           # <vector>
system='<[a-z_0-9/]+\.h'         # <unistd.h>, <sys/mman.h>
code='\.(h|cpp|cu)$'

breach sight < <(only "$contracts|$standard|<stdint\.h" $(matching '^kernels/include/'))
breach sight < <(includes $(matching "^kernels/.*$code") | grep -E ':<?(reference|harness|apps|cli|tests)/')
breach sight < <(only "$contracts|reference/[a-z_0-9/]+\.h|$standard|<Eigen/[A-Za-z]+" $(matching "^reference/.*$code"))
breach sight < <(only "$contracts|(reference|harness)/[a-z_0-9/]+\.h|$standard|$system|<(fmt|nlohmann|zlib)[a-z_./]+" \
  $(matching "^harness/.*$code"))
breach sight < <(only "$contracts|(harness|cli)/[a-z_0-9/]+\.h|$standard|$system|<(CLI|fmt|nlohmann|benchmark)[A-Za-z_./]+" \
  $(matching "^apps/.*$code"))
breach sight < <(only "$contracts|$standard|$system" $(matching "^examples/.*$code"))

# Words are looked for in code, not in comments.
uncommented() {
  [ $# -gt 0 ] || return 0
  grep -Hn '' "$@" /dev/null | sed -E 's|//.*$||'
}
kernel_code=$(matching '^kernels/(qsa|tq|roof)/')
portable="$kernel_code $(matching '^kernels/device/[a-z_]+\.(h|cpp)$')"
vendor='(^|[^A-Za-z_0-9])(cuda[A-Za-z_]*|hip[A-Z_][A-Za-z_]*|hip_[a-z_]*|__(shfl|ballot|syncthreads|syncwarp|global__|device__|shared__|builtin_amdgcn|nv_)[a-z_]*|threadIdx|blockIdx|blockDim|gridDim|asm|__asm__|warpSize)([^A-Za-z_0-9]|$)|__shfl|__ballot|<<<|0x[fF]{8}([^fF]|$)'
widths='(&|%|/|\*)[[:space:]]*(31|32|63|64)([^0-9.]|$)|(>>|<<)[[:space:]]*[56]([^0-9]|$)'
breach words < <(uncommented $portable | grep -E -- ":.*($vendor)")
breach words < <(uncommented $kernel_code | grep -E -- ":[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif)")
breach words < <(uncommented $kernel_code | grep -E -- "(lane|thread|wave|warp|ballot|mask).*($widths)")
# A portable and a tuned decode.cu each with an `inline Plan plan_of(Args)` shared one of them, on CUDA only: simt's
# compiler had inlined both.
breach own < <(uncommented $(matching '^kernels/(qsa|tq|roof)/.*\.cu$') |
  grep -E -- ':inline [^c]' | sed 's/$/  (what one .cu file defines belongs into an anonymous namespace)/')

ops=$(sed -nE 's/^[[:space:]]*toolkit_op\(([a-z]+) ([a-z_]+)\).*/\1 \2/p' CMakeLists.txt)
[ -n "$ops" ] || breach whole <<< "CMakeLists.txt:0:no toolkit_op() at all"
while read -r family op; do
  for file in kernels/include/$family/$op.h kernels/$family/$op.cu reference/$family/$op.cpp \
    harness/ops/$family/$op.cpp tests/$family/${op}_test.cpp; do
    [ -f "$file" ] || breach whole <<< "$file:0:$family.$op lacks it (an op is contract, kernel, oracle, card and test)"
  done
done <<< "$ops"
# and the other way round: a kernel, oracle or card that no toolkit_op() names is in no build
for file in $(matching '^(kernels|reference|harness/ops)/(qsa|tq)/[a-z]+\.(cu|cpp)$'); do
  family=$(basename "$(dirname "$file")") op=$(basename "$file" | sed 's/\..*//')
  case "$file" in reference/*/*.cpp | kernels/*/*.cu | harness/ops/*/*.cpp)
    echo "$ops" | grep -qx "$family $op" ||
      grep -qrE "$family/$op\.(cpp|cu)" --include=CMakeLists.txt . ||
      breach whole <<< "$file:0:no toolkit_op($family $op) in CMakeLists.txt" ;;
  esac
done

probes=$(sed -nE 's/^[[:space:]]*toolkit_probe\(([a-z]+) ([a-z_]+)\).*/\1 \2/p' CMakeLists.txt)
for file in $(matching '^kernels/roof/[a-z_]+\.cu$'); do
  probe=$(basename "$file" .cu)
  grep -qx "roof $probe" <<< "$probes" || breach whole <<< "$file:0:no toolkit_probe(roof $probe) in CMakeLists.txt"
  [ -f "kernels/include/roof/$probe.h" ] || breach whole <<< "$file:0:roof.$probe has no contract"
done

beside="\.\./sha""red" machine="(/wo""rk/|/ro""ot/|/ho""me/[a-z])"
breach places < <(grep -HnIE -- "$beside|$machine" $(matching '.') /dev/null | cut -c1-200)

for file in $(matching '(\.(h|cpp|cu|cmake|sh)|CMakeLists\.txt)$' '^datasets/'); do
  line=1
  case $(head -c 2 "$file") in '#!') line=2 ;; esac
  sed -n "${line}p" "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
    breach licence <<< "$file:$line:expected 'SPDX-License-Identifier: Apache-2.0'"
done

[ "$found" = 0 ] && echo "layout: $(echo "$files" | wc -l) files, no breach"
exit "$found"
