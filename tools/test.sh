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
    # Dozens of processes import PyTorch and vLLM, which takes each of them half as long once what
    # they import was compiled.
    unset PYTHONDONTWRITEBYTECODE
    # Those of runs and of engines wait for their processes most of the time: they go beside the
    # others.
    failed=0
    pytest() { build/venv/bin/python -m pytest -q -rs "$@"; }
    pytest python/tests/test_run*.py python/tests/test_training*.py \
      >build/pytest-runs.log 2>&1 &
    runs=$!
    pytest python/tests/test_vllm*.py >build/pytest-engines.log 2>&1 &
    engines=$!
    others=()
    for pattern in test_run test_vllm test_training; do
      others+=("--ignore-glob=*/$pattern*.py")
    done
    pytest "${others[@]}" || failed=1
    # 5: all of them are skipped, which is right without PyTorch or vLLM alone.
    lacks() { ! build/venv/bin/python -c "import $1" 2>/dev/null; }
    wait $runs || { [ $? -eq 5 ] && lacks torch; } || failed=1
    cat build/pytest-runs.log
    wait $engines || { [ $? -eq 5 ] && lacks vllm; } || failed=1
    cat build/pytest-engines.log
    [ $failed -eq 0 ]
    continue
  fi
  echo "== $preset: build"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  echo "== $preset: test"
  ctest --preset "$preset"
done
