#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need (Debian 12 and 13), as root
# or with sudo. What is there already is left alone, and nothing is asked of the network then.
#
#   tools/setup.sh          for everything but the below
#   tools/setup.sh arm64    also the cross compiler, the emulator and the libraries of
#                           `make test-arm64`
#   tools/setup.sh spec     what `make spec` needs, and nothing else
set -euo pipefail

packages=(
  # Building.
  make cmake ninja-build g++ pkg-config ccache
  libzstd-dev libsodium-dev libhwy-dev libxxhash-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libspdlog-dev libsqlite3-dev libtomlplusplus-dev libzmq3-dev
  # Tests, sanitizers, fuzzers, lint, benchmarks.
  libgtest-dev libbenchmark-dev librapidcheck-dev libgoogle-perftools-dev
  clang lld libclang-rt-dev clang-tidy clang-format
  xdelta3 zstd
  # The demo and tools/*.py; git lists the files that lint looks at.
  python3 python3-pip unzip git
  # The Python package and its tests.
  python3-venv python3-dev
)
arm64_packages=(
  g++-aarch64-linux-gnu qemu-user googletest
  libzstd-dev:arm64 libsodium-dev:arm64 libhwy-dev:arm64 libxxhash-dev:arm64 libfmt-dev:arm64
)

spec_packages=(spin gcc libc6-dev python3)

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "tools/setup.sh: installing packages needs root: run this as root or install sudo" >&2
    exit 1
  fi
}

# Those of the arguments that are not installed, one a line. A package without ":architecture" is
# meant for this machine's.
missing() {
  local native package there
  native=$(dpkg --print-architecture)
  there=$(dpkg-query -W -f '${db:Status-Status} ${Package}:${Architecture}\n' |
    sed -n 's/^installed //p')
  for package in "$@"; do
    case $package in
      *:*) ;;
      *) grep -qxF -e "$package:$native" -e "$package:all" <<<"$there" && continue ;;
    esac
    grep -qxF "$package" <<<"$there" || echo "$package"
  done
}

install() {
  local wanted
  mapfile -t wanted < <(missing "$@")
  if [ ${#wanted[@]} -eq 0 ]; then
    return
  fi
  echo "installing: ${wanted[*]}"
  # A package list that is out of date or one foreign source that cannot be reached must not stop
  # what the install itself can still do.
  as_root apt-get update -qq || echo "tools/setup.sh: apt-get update reported errors; going on" >&2
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
}

if ! command -v apt-get >/dev/null; then
  echo "tools/setup.sh: this is not Debian: install by its own means: ${packages[*]}" >&2
  exit 1
fi

case "${1:-}" in
  "") install "${packages[@]}" ;;
  arm64)
    if ! dpkg --print-foreign-architectures | grep -qx arm64; then
      as_root dpkg --add-architecture arm64
    fi
    install "${packages[@]}" "${arm64_packages[@]}"
    ;;
  spec) install "${spec_packages[@]}" ;;
  *)
    echo "usage: tools/setup.sh [arm64|spec]" >&2
    exit 2
    ;;
esac
