#!/usr/bin/env bash
# The checks that need no run: format, house rules, clang-tidy. With arguments, clang-tidy looks at
# these files only.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard \
  'src/*.cc' 'src/*.h' 'include/*.h' 'bench/*.cc' 'bench/*.h' 'fuzz/*.cc' 'fuzz/*.h' \
  'tests/*.cc' 'tests/*.h')

echo "== clang-format"
clang-format --dry-run -Werror "${files[@]}"

echo "== tidy.py"
python3 tools/tidy.py

echo "== clang-tidy"
# The compile commands of a clang build without precompiled headers, which clang-tidy cannot read
# from another compiler. Nothing is built.
cmake --preset dev -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DDCR_SANITIZE= >/dev/null
if [ $# -eq 0 ]; then
  set -- '/(src|bench|fuzz|tests)/.*\.cc$'
fi
run-clang-tidy -quiet -p build/lint "$@" 2>&1 |
  grep -vE '^[0-9]+ warnings? generated|^Suppressed |^Use -header-filter|^clang-tidy|^$' || true
exit "${PIPESTATUS[0]}"
