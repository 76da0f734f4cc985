# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: installs what a build needs from the distribution's own archive.
# Debian 12 is tried; Ubuntu 24.04 has the same package names and is untried.

required_packages="build-essential cmake ninja-build ccache git ca-certificates libcli11-dev libbenchmark-dev
  libeigen3-dev nlohmann-json3-dev libgtest-dev libfmt-dev libboost-context-dev"
# Device-only compilation for gfx942/gfx950; its tests are skipped where no archive has it.
optional_packages="clang-22 lld-22"

say() { printf '%s\n' "$*"; }

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# missing_of PACKAGE...: those that are not installed.
missing_of() {
  local package
  for package in "$@"; do is_installed "$package" || printf '%s ' "$package"; done
}

# install_packages WITH_OPTIONAL(yes/no): installs what is missing, says what; does nothing where nothing is missing.
install_packages() {
  local missing optional=""
  missing=$(missing_of $required_packages)
  [ "$1" = yes ] && optional=$(missing_of $optional_packages)
  if [ -z "$missing$optional" ]; then
    say "packages: all there"
    return 0
  fi
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    [ -z "$missing" ] && return 0
    say "error: packages are missing and this is not root on a machine with apt-get; install them and run again:"
    say "  apt-get install -y --no-install-recommends $missing"
    return 2
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || say "packages: apt-get update failed; going on with the lists that are here"
  if [ -n "$optional" ]; then
    local known
    known=$(known_packages $optional)
    [ -n "$known" ] || say "packages: no archive here has ${optional}- the tests that need them are skipped"
    missing="$missing$known"
  fi
  [ -z "$missing" ] && return 0
  say "packages: installing $missing"
  apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
    say "error: apt-get could not install: $missing"
    return 2
  }
}

# Those of the given packages that some configured archive has.
known_packages() {
  local package
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then printf '%s ' "$package"; fi
  done
}

# find_nvcc: puts an nvcc of the usual place on PATH; says what the build will do.
find_nvcc() {
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then PATH=/usr/local/cuda/bin:$PATH; fi
  if command -v nvcc >/dev/null; then
    say "cuda: $(command -v nvcc), kernels-cuda will be built"
  else
    say "cuda: no nvcc on PATH or in /usr/local/cuda; building without kernels-cuda"
  fi
}

# ccache ends a compilation where it cannot write its cache, as in a read-only home: then the cache goes into build/.
place_ccache() {
  local home=~ cache
  cache=${CCACHE_DIR:-${XDG_CACHE_HOME:-$home/.cache}/ccache}
  { mkdir -p "$cache" && [ -w "$cache" ]; } 2>/dev/null && return 0
  export CCACHE_DIR=$PWD/build/ccache
  say "ccache: $cache is not writable; using $CCACHE_DIR"
}

# configure_and_build BUILD_DIR [targets...]; TOOLKIT_GIT_SHA is the revision of a tree without its history.
configure_and_build() {
  local dir=$1
  shift
  place_ccache
  cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTOOLKIT_GIT_SHA="${TOOLKIT_GIT_SHA-}" >"$dir.configure.log" 2>&1 || {
    cat "$dir.configure.log"
    say "error: configuring failed, see above"
    return 1
  }
  cmake --build "$dir" ${1:+--target "$@"}
}
