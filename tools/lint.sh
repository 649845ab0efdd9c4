#!/usr/bin/env bash
# The checks that need no run: format, house rules, clang-tidy; all three, whatever the first says.
# With arguments (regular expressions of paths), clang-tidy looks at these files only.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard \
  'src/*.cc' 'src/*.h' 'include/*.h' 'bench/*.cc' 'bench/*.h' 'fuzz/*.cc' 'fuzz/*.h' \
  'tests/*.cc' 'tests/*.h' 'sim/*.cc' 'sim/*.h')
failed=0

echo "== clang-format"
clang-format --dry-run -Werror "${files[@]}" || failed=1

echo "== tidy.py"
python3 tools/tidy.py || failed=1

echo "== clang-tidy"
# The compile commands of a clang build, one for each file, without precompiled headers and
# sanitizers: those would only cost time here. Nothing is built.
cmake --preset dev -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=OFF \
  -DDCR_SANITIZE= -DDCR_SIMULATION=ON >/dev/null
log=build/lint/clang-tidy.log
tidy() {
  if ! run-clang-tidy -quiet -p build/lint "$@" >"$log" 2>&1; then
    grep -vE '^(clang-tidy|[0-9]+ warnings? )|^Suppressed ' "$log" || true
    failed=1
  fi
}
if [ $# -eq 0 ]; then
  tidy '/(src|bench|fuzz|tests|sim)/([^_]|_(?!(test|bench)\.cc))*\.cc$'
  # Tests are half of all files and include the most: with all checks they would take as long again.
  tidy '-checks=-*,bugprone-use-after-move,google-build-using-namespace,misc-unused-using-decls,'\
'modernize-use-override,performance-move-const-arg,readability-identifier-naming' \
    '/(src|bench|fuzz|tests|sim)/.*_(test|bench)\.cc$'
else
  tidy "$@"
fi

if [ $failed -ne 0 ]; then
  echo "lint: failed"
  exit 1
fi
echo "lint: clean"
