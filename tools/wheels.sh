#!/usr/bin/env bash
# Wheels of the Python package in build/wheels, one for each CPython: built, installed into an
# environment of their own and put through the tests that need neither PyTorch nor vLLM.
#
#   tools/wheels.sh [PYTHON…]   interpreters; python3.11, python3.12 and python3.13 by default, of
#                               which those that aren't there are left out by name
set -euo pipefail
cd "$(dirname "$0")/.."

wheels=build/wheels
pythons=("$@")
if [ $# -eq 0 ]; then
  for python in python3.11 python3.12 python3.13; do
    if "$python" -c '' 2>/dev/null; then
      pythons+=("$python")
    else
      echo "wheels: there is no $python, so no wheel for it"
    fi
  done
fi
if [ ${#pythons[@]} -eq 0 ]; then
  echo "wheels: none was built" >&2
  exit 1
fi

for python in "${pythons[@]}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  echo "== $tag"
  environment=$wheels/$tag
  rm -rf "$environment" "$wheels"/dcr_refit-*-"$tag"-*.whl
  "$python" -m venv "$environment"
  pip() { "$environment/bin/pip" --quiet --disable-pip-version-check "$@"; }
  pip install -r python/requirements/base.txt
  pip wheel --no-deps --no-build-isolation --wheel-dir "$wheels" .
  pip install --no-deps "$wheels"/dcr_refit-*-"$tag"-*.whl
  "$environment/bin/python" -m pytest -q
done
ls -l "$wheels"/*.whl
