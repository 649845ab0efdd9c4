#!/usr/bin/env bash
# Runs every fuzz target for the given number of seconds, from its corpus. What they find is left in
# build/fuzz/found/; a crash ends with its input there and exit code 1.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-300}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
for program in build/fuzz/bin/*_fuzz; do
  name=$(basename "$program" _fuzz)
  echo "== $name: $seconds s"
  mkdir -p "build/fuzz/found/$name"
  # The first directory takes new inputs; the committed corpus is only read.
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$name/" "build/fuzz/found/$name" "fuzz/corpus/$name"
done
