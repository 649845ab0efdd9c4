#!/usr/bin/env bash
# Configures, builds and tests the presets named as arguments, in that order; stops at the first
# failure. Each ends with ctest's summary. `python` is the Python package with its tests, which say
# what they skip and why.
set -euo pipefail
cd "$(dirname "$0")/.."

for preset in "$@"; do
  if [ "$preset" = python ]; then
    echo "== python: build"
    tools/python.sh
    echo "== python: test"
    # Those of runs wait for their processes most of the time: they go beside the others.
    failed=0
    build/venv/bin/python -m pytest -q -rs python/tests/test_run*.py >build/pytest-runs.log 2>&1 &
    build/venv/bin/python -m pytest -q -rs --ignore-glob='*/test_run*.py' || failed=1
    wait $! || failed=1
    cat build/pytest-runs.log
    [ $failed -eq 0 ]
    continue
  fi
  echo "== $preset: build"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  echo "== $preset: test"
  ctest --preset "$preset"
done
