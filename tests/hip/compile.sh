#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compile.sh [--refused TEXT] KERNELS_FOLDER FILE.cu
# Compiles the device code of a kernel source for gfx942 and gfx950 and counts the kernels in the result. With
# --refused the compilation has to fail and say TEXT. Exit 77: no compiler here.
set -u
archs="gfx942 gfx950"
refused=""
if [ "$1" = "--refused" ]; then refused=$2; shift 2; fi
kernels=$1 source=$2

if [ -z "${HIP_CLANG:-}" ]; then
  echo "skipped: no clang++ 22 or newer found (apt.llvm.org has clang-22 for Debian 12); set TOOLKIT_HIP_CLANG"
  exit 77
fi
version=$("$HIP_CLANG" -dumpversion | cut -d. -f1)
if [ "$version" -lt 22 ]; then
  echo "skipped: $HIP_CLANG is version $version, gfx950 needs 22 or newer (Debian 12: apt-get install clang-22)"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
  local offload="" arch
  for arch in $archs; do offload="$offload --offload-arch=$arch"; done
  # Code object version 5 is what the block counts in hip/backend.h rely on.
  (cd "$work" && "$HIP_CLANG" -x hip $offload --cuda-device-only -nogpulib -nogpuinc -mcode-object-version=5 \
    -std=c++20 -O3 -ffp-contract=off -Wall -Wextra --no-gpu-bundle-output -S \
    -I"$kernels" -I"$kernels/include" -I"$kernels/device/hip" "$source") || return 1
  for arch in $archs; do
    local assembly count
    assembly=$(echo "$work"/*"$arch"*.s)
    count=$(grep -c '^[[:space:]]*\.amdhsa_kernel ' "$assembly")
    if ! grep -qE 'DEVICE_KERNEL(_BLOCKS)?\(' "$source"; then
      echo "$arch: no kernel of its own (a composed op)"
      continue
    fi
    if [ "$count" -eq 0 ]; then
      echo "$source: no kernel in the code for $arch: expected at least one that its host code launches"
      return 1
    fi
    echo "$arch: $count kernels, $(most vgpr_count "$assembly") vector registers at most," \
      "$(most group_segment_fixed_size "$assembly") bytes of static shared memory," \
      "$(most private_segment_fixed_size "$assembly") of scratch"
  done
}
most() { sed -n "s/^ *\.$1: *\([0-9]*\).*/\1/p" "$2" | sort -n | tail -1; }

if [ -z "$refused" ]; then
  compile
  exit
fi
if output=$(compile 2>&1); then
  echo "expected a refusal that says '$refused', but it compiled: $output"
  exit 1
fi
echo "$output"
case "$output" in
  *"$refused"*) exit 0 ;;
esac
echo "refused, but not by the expected words '$refused'"
exit 1
