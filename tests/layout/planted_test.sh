#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# planted_test.sh ROOT: breaches planted into a copy of the tree are each reported by check.sh, and what only looks like
# one is not.
set -u
root=$1
here=$(cd "$(dirname "$0")" && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -C "$root" --exclude=./.git --exclude='./build*' --exclude=./out --exclude=./datasets --exclude=./results \
  --exclude=./tests/data -cf - . | tar -C "$copy" -xf -
spdx='// SPDX-License-Identifier: Apache-2.0'
expected=()

# plant FILE LINE RULE: appends a line that has to be reported. `innocent FILE LINE`: one that must not be.
plant() {
  [ -f "$copy/$1" ] || echo "$spdx" > "$copy/$1"
  echo "$2" >> "$copy/$1"
  expected+=("$1:$(wc -l < "$copy/$1"): [$3]")
}
innocent_lines=()
innocent() {
  [ -f "$copy/$1" ] || echo "$spdx" > "$copy/$1"
  echo "$2" >> "$copy/$1"
  innocent_lines+=("$1:$(wc -l < "$copy/$1"):")
}

for room in reference harness apps tests; do plant kernels/qsa/planted.cu "#include \"$room/planted.h\"" sight; done
plant kernels/include/qsa/planted.h '#include "device/device.h"' sight
plant kernels/include/qsa/planted.h '#include <cuda_runtime.h>' sight
plant reference/qsa/planted.cpp '#include "device/numeric.h"' sight
plant reference/qsa/planted.cpp '  #  include "qsa/common.h"' sight
plant reference/qsa/planted.cpp '#include "harness/ops/card.h"' sight
plant reference/qsa/planted.cpp '#include "../kernels/qsa/common.h"' sight
plant reference/qsa/planted.cpp '#include <fmt/format.h>' sight
plant harness/planted.cpp '#include "device/device.h"' sight
plant harness/planted.cpp '#include "qsa/launches.h"' sight
plant harness/planted.cpp '#include "kernels/qsa/expand.cu"' sight
plant harness/planted.cpp '#include "cli/options.h"' sight
plant harness/planted.cpp '#include <Eigen/Dense>' sight
plant apps/planted.cpp '#include "device/op.h"' sight
plant apps/planted.cpp '#include "qsa/common.h"' sight
plant examples/planted.cpp '#include "device/device.h"' sight
innocent reference/qsa/planted.cpp '#include "qsa/expand.h"'
innocent reference/qsa/planted.cpp '#include <Eigen/Dense>'
innocent harness/planted.cpp '#include "reference/oracle.h"'
innocent harness/planted.cpp '#include <sys/mman.h>'
innocent apps/planted.cpp '#include "harness/ops/card.h"'

for code in 'cudaMalloc(&p, 4);' 'hipMalloc(&p, 4);' '#include <hip_runtime.h>' 'v = __shfl_xor_sync(m, v, 1);' \
  'm = __ballot_sync(m, b);' 'v = f(0xffffffff, v);' 'v = f(0xFFFFFFFFu, v);' 'asm volatile("");' 'i = threadIdx.x;' \
  'kernel<<<1, 2>>>();' '#if SIMT_WAVE == 32' '  #ifdef __CUDACC__' 'const int lane = t & 31;' \
  'const int wave = t >> 5;' 'const int lane = t % 64;' '__syncthreads();'; do
  plant kernels/tq/planted.h "$code" words
done
plant kernels/roof/planted.cu 'i = threadIdx.x;' words
expected+=("kernels/roof/planted.cu:0: [whole] no toolkit_probe(roof planted)")
expected+=("kernels/roof/planted.cu:0: [whole] roof.planted has no contract")
plant kernels/tq/decode.cu 'inline int plan_of(int x) { return x; }' own
innocent kernels/tq/decode.cu 'inline constexpr int kPlanted = 1;'
innocent kernels/tq/elements.h 'inline int planted(int x) { return x; }'
plant kernels/device/numeric.h 'cudaMalloc(&p, 4);' words
plant kernels/device/collectives.h 'v = __shfl_xor_sync(m, v, 1);' words
innocent kernels/tq/planted.h '// unlike cudaMalloc, and with threadIdx.x'
innocent kernels/tq/planted.h 'const int lane = t % device::kWave;'
innocent kernels/tq/planted.h 'const uint64_t all = 0xffffffffffffffffull;'
innocent kernels/tq/planted.h 'const int code = bits >> 5;'

rm "$copy/reference/qsa/expand.cpp"
expected+=("reference/qsa/expand.cpp:0: [whole] qsa.expand")
expected+=("kernels/qsa/planted.cu:0: [whole] no toolkit_op(qsa planted)")
plant tests/planted.h '// data from ../sha''red/golden' places
plant README.md 'see /wo''rk/main/build' places
echo 'int x;' > "$copy/harness/unlicensed.h"
expected+=("harness/unlicensed.h:1: [licence]")
printf '#!/bin/sh\n:\n' > "$copy/scripts/unlicensed.sh"
expected+=("scripts/unlicensed.sh:2: [licence]")

report=$(bash "$here/check.sh" "$copy")
status=$?
failed=0
[ "$status" = 1 ] || { echo "expected exit status 1 for a planted tree, got $status"; failed=1; }
for e in "${expected[@]}"; do
  grep -qF -- "$e" <<< "$report" || { echo "not reported: $e"; failed=1; }
done
for e in "${innocent_lines[@]}"; do
  grep -F -- "$e" <<< "$report" && { echo "reported, but no breach: $e"; failed=1; }
done
[ "$failed" = 0 ] && echo "${#expected[@]} planted breaches reported, ${#innocent_lines[@]} innocent lines not"
exit "$failed"
