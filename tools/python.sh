#!/usr/bin/env bash
# The Python side in build/venv: the package, built from this checkout, and what its tests and demos
# need.
#
#   tools/python.sh           build and install
#   tools/python.sh lock      make python/requirements/lock.txt anew from the lists beside it
#
# DCR_WITHOUT_TORCH=1 leaves PyTorch and vLLM out; their tests then say that they were skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=python/requirements
venv=build/venv
if [ ! -x "$venv/bin/uv" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check uv
fi
uv() { VIRTUAL_ENV="$PWD/$venv" "$venv/bin/uv" --quiet "$@"; }

case "${1:-}" in
  "")
    if [ "${DCR_WITHOUT_TORCH:-0}" = 1 ]; then
      uv pip install -r "$requirements/base.txt"
    else
      uv pip install --no-deps -r "$requirements/lock.txt"
    fi
    # In the folder of the release build, whose libraries are the same: nothing is compiled twice.
    # With its ninja too, for another version (vLLM brings one) reads no log but its own and begins
    # anew.
    uv pip install --no-deps --no-build-isolation --reinstall-package dcr-refit \
      --config-setting build-dir=build/release --config-setting cmake.define.DCR_DEVELOPER_MODE=ON \
      --config-setting cmake.define.CMAKE_MAKE_PROGRAM="$(command -v ninja)" .
    ;;
  lock)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$venv/bin/uv" --quiet venv "$scratch/venv"
    VIRTUAL_ENV="$scratch/venv" "$venv/bin/uv" --quiet pip install \
      -r "$requirements/base.txt" -r "$requirements/torch.txt" \
      --override "$requirements/override.txt"
    {
      echo "# Everything that the tests and demos need, with exact versions: made by"
      echo "# tools/python.sh lock."
      VIRTUAL_ENV="$scratch/venv" "$venv/bin/uv" pip freeze
    } >"$requirements/lock.txt"
    ;;
  *)
    echo "usage: tools/python.sh [lock]" >&2
    exit 2
    ;;
esac
