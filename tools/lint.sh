#!/usr/bin/env bash
# The checks that need no run: format, house rules, mypy, clang-tidy; all, whatever the first says.
# With arguments (regular expressions of paths), clang-tidy looks at these files only.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard \
  'src/*.cc' 'src/*.h' 'src/*.cu' 'include/*.h' 'bench/*.cc' 'bench/*.h' 'fuzz/*.cc' 'fuzz/*.h' \
  'tests/*.cc' 'tests/*.h' 'sim/*.cc' 'sim/*.h' 'python/*.cc' 'python/*.h')
failed=0

echo "== clang-format"
clang-format --dry-run -Werror "${files[@]}" || failed=1

echo "== tidy.py"
python3 tools/tidy.py || failed=1

echo "== mypy"
# As the package is installed, with the stubs that its build makes.
tools/python.sh
build/venv/bin/python -m mypy &
package=$!
# Scripts, whose libraries have no types; another cache, for options differ.
build/venv/bin/python -m mypy --ignore-missing-imports --follow-imports=silent \
  --cache-dir build/mypy-training python/training/*.py || failed=1
wait $package || failed=1

echo "== clang-tidy"
# The compile commands of a clang build without precompiled headers and sanitizers: those would only
# cost time here. Nothing is built. All of it is read as the unity build joins it, so that standard
# headers, in which most of the time goes, are looked at once for many files.
unity=$([ $# -eq 0 ] && echo ON || echo OFF)
cmake --preset dev -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DCMAKE_UNITY_BUILD="$unity" -DCMAKE_UNITY_BUILD_BATCH_SIZE=64 -DDCR_SANITIZE= \
  -DDCR_SIMULATION=ON >/dev/null
# tidy DIRECTORY ARGUMENT…: with the compile commands of that build.
tidy() {
  local said
  if ! said=$(run-clang-tidy -quiet -p "$@" 2>&1); then
    grep -vE '^(clang-tidy|[0-9]+ warnings? )|^Suppressed ' <<<"$said" || true
    return 1
  fi
}
if [ $# -eq 0 ]; then
  tests='_(tests?|bench)(\.dir/Unity/[^/]*\.cxx|\.cc)$'
  # A unity file includes what is no header. The bindings, which are one, are read as the package's
  # build compiles them: by GCC, which has warnings of its own.
  tidy build/release -checks=-bugprone-suspicious-include -extra-arg=-Wno-unknown-warning-option \
    '/dcr_python\.dir/Unity/[^/]*\.cxx$' &
  bindings=$!
  tidy build/lint -checks=-bugprone-suspicious-include "^(?!.*$tests)(?!.*_headers\.dir/)" ||
    failed=1
  # Tests are run, under sanitizers too: of them only names, and what makes one see less than it
  # seems to. Two thirds of the time are checks.
  seen=bugprone-use-after-move,bugprone-unused-return-value,bugprone-unused-raii
  seen+=,bugprone-infinite-loop,bugprone-suspicious-semicolon,bugprone-assert-side-effect
  tidy build/lint "-checks=-*,readability-identifier-naming,$seen" "$tests" || failed=1
  wait $bindings || failed=1
else
  tidy build/lint "$@" || failed=1
fi

if [ $failed -ne 0 ]; then
  echo "lint: failed"
  exit 1
fi
echo "lint: clean"
