#!/usr/bin/env bash
# Configures, builds and tests the presets named as arguments, in that order; stops at the first
# failure. Each ends with ctest's summary.
set -euo pipefail
cd "$(dirname "$0")/.."

for preset in "$@"; do
  echo "== $preset: build"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  echo "== $preset: test"
  ctest --preset "$preset"
done
